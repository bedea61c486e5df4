"""One sound variant of a procedure: quantities from their alternatives, interchangeable names, a possible order."""

import dataclasses
import random
import re
from collections.abc import Sequence

from thoth_jax.data.builder.source import SourceProtocol, SourceStep, fill
from thoth_jax.protocol.grammar import Step


@dataclasses.dataclass(frozen=True)
class Line:
    """A step as it stands in an answer.

    step:  the key line, in lower case.
    say:   the orc sentence; prose: the same in other words.
    told:  how source texts in questions put it: mostly as prose.
    brief: the sentence without settings ("add lysis buffer"), or "" where nothing readable is left.
    id:    of the source step; "" for a step of a remedy.
    """

    step: Step
    say: str
    prose: str
    brief: str
    why: str
    told: str = ""
    hazard: str = ""
    id: str = ""

    def outline(self) -> "Line":
        """The same line without settings."""
        say = f"{self.brief[0].upper()}{self.brief[1:]}."
        return dataclasses.replace(self, step=self.step._replace(parameters=()), say=say)


# Share of lines that source texts give in the words of the orc line: a source is not always reworded.
_PLAINLY_TOLD = 0.4


class Variant:
    """A protocol with names and quantities drawn once, so that all its lines agree.

    Args:
      rng: source of all choices; None: the standard variant.
      told: source of the choice of wording where it is not `rng`.
    """

    def __init__(self, protocol: SourceProtocol, rng: random.Random | None = None, told: random.Random | None = None):
        self.protocol, self._rng, self._told = protocol, rng, told or rng
        self._names = {names[0]: rng.choice(names) for names in protocol.swaps} if rng else {}
        self._lines: dict[int, Line] = {}

    def line(self, step: SourceStep) -> Line:
        """The line of a step of the procedure or of a remedy; always the same one."""
        if id(step) not in self._lines:
            self._lines[id(step)] = self._draw(step)
        return self._lines[id(step)]

    def lines(self, steps: Sequence[SourceStep]) -> list[Line]:
        """The lines of several steps."""
        return [self.line(step) for step in steps]

    def text(self, text: str) -> str:
        """A text of the protocol with the drawn names."""
        for first, other in self._names.items():
            if first != other:
                text = _rename(text, first, other)
        return text

    def _draw(self, step: SourceStep) -> Line:
        rng = self._rng
        parameters = [self.text(q.draw(rng) if rng else q.standard()) for q in step.parameters]
        objects = [self.text(object) for object in step.objects]
        template = self.text(step.say)
        say = capital(fill(template, objects, parameters))
        prose = capital(fill(self.text(step.prose), objects, parameters))
        return Line(
            step=Step(
                step.action.lower(), tuple(o.lower() for o in objects), tuple(text.lower() for text in parameters)
            ),
            say=say,
            prose=prose,
            told=say if self._told and self._told.random() < _PLAINLY_TOLD else prose,
            brief=brief(template, objects),
            why=self.text(step.why),
            hazard=self.text(step.hazard),
            id=step.id,
        )


def capital(text: str) -> str:
    """A text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _rename(text: str, first: str, other: str) -> str:
    """Replace a name; an article before it and a capital at its start follow."""

    def put(match: re.Match) -> str:
        article, name = match.group(1), match.group(2)
        new = other if name[0] == first[0] else capital(other)
        if not article:
            return new
        word = "an" if other[0].lower() in "aeiou" else "a"
        return f"{capital(word) if article[0] == 'A' else word} {new}"

    return re.sub(rf"\b(?:(an?|An?) )?({re.escape(first)}|{re.escape(capital(first))})\b", put, text)


_BEFORE = "about above across after against among around at before below beside between by down during for from in into"
_BEFORE += " of off on onto out over per through to toward under until up with within without"
_PREPOSITION = rf"\b(?:{'|'.join(_BEFORE.split())})"
_MODIFIER = re.compile(r"(?:\b(?:the|a|an) )?\{p\d\}(?: of)? (?=(?:[\w-]+ )?\{o\d\})")
_PHRASE = re.compile(rf"(?:{_PREPOSITION} )?(?:(?:the|a|an) )?\{{p\d\}}(?:,| of| and| or)? ?")

_SETTING_DONE = re.compile(rf"\S+ (?:(?:the|a|an) )?\{{p\d\}} (?!of ){_PREPOSITION}\b")


def brief(say: str, objects: Sequence[str]) -> str:
    """A `say` template up to its last object, without settings.

    >>> brief("Add {p1} {o1} to the suspension.", ["lysis buffer"])
    'add lysis buffer'
    >>> brief("Mark {p1} on the {o1}.", ["plate"])
    ''
    >>> brief("Keep {o1} away from {p1}.", ["acid"])
    ''
    """
    if _SETTING_DONE.match(say):  # "mark {p1} on the plate": the setting is what is marked
        return ""
    if " away" in say:  # "keep acid" would say the opposite
        return ""
    end = max(say.find(f"{{o{n}}}") for n in range(1, len(objects) + 1)) + 4
    text = _PHRASE.sub("", _MODIFIER.sub("", say[:end])).strip(" ,")
    if "{p" in text:
        return ""
    text = fill(text, objects, ())
    return text[0].lower() + text[1:]


def any_order(protocol: SourceProtocol, rng: random.Random) -> list[SourceStep]:
    """All steps in an order that `after` allows: the written one half of the time, else any."""
    if rng.random() < 0.5:
        return list(protocol.steps)
    waiting, done, order = list(protocol.steps), set(), []
    while waiting:
        free = [step for step in waiting if done.issuperset(step.after)]
        step = rng.choice(free)
        waiting.remove(step)
        done.add(step.id)
        order.append(step)
    return order


def window(protocol: SourceProtocol, size: int, rng: random.Random) -> list[SourceStep]:
    """`size` steps that follow one another in an order that `after` allows."""
    order = any_order(protocol, rng)
    start = rng.randrange(max(1, len(order) - size + 1))
    return order[start : start + size]


def chain(protocol: SourceProtocol, size: int, rng: random.Random) -> list[SourceStep] | None:
    """`size` steps of which each needs the one before directly; None where the walk met a dead end."""
    by_id = {step.id: step for step in protocol.steps}
    found = [rng.choice([step for step in protocol.steps if step.after])]
    while len(found) < size:
        if not found[0].after:
            return None
        found.insert(0, by_id[rng.choice(found[0].after)])
    return found


def dependent(protocol: SourceProtocol, size: int, rng: random.Random) -> list[SourceStep]:
    """`size` steps that hang together through `after`, in an order that it allows."""
    chosen = {rng.choice(protocol.steps).id}
    links = {step.id: set(step.after) for step in protocol.steps}
    while len(chosen) < size:
        near = [id for id in links if id not in chosen and (links[id] & chosen or any(id in links[c] for c in chosen))]
        if not near:
            break
        chosen.add(rng.choice(near))
    return [step for step in any_order(protocol, rng) if step.id in chosen]
