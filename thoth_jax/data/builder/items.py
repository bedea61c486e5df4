"""Items of the eight task types: what they have in common, and the one way to build one."""

import dataclasses
import random
from collections.abc import Callable, Sequence

from thoth_jax.data.builder import argue
from thoth_jax.data.builder.draw import Line, Variant
from thoth_jax.data.builder.source import SourceProtocol
from thoth_jax.protocol.grammar import Step, join_blocks, render_step

# Longest answer, in tokens of the bundled tokenizer.
MAX_ANSWER = 160
_DISTRACTORS = {0: 0, 1: 2, 2: 5}
_TRIES = 40


@dataclasses.dataclass(frozen=True)
class Draft:
    """What a builder of one type makes; the rest of an item follows from it.

    question: without the naming of the protocol, which comes before it.
    lines:    the steps of the answer, in order.
    why:      sentences that open the think block.
    order:    a last sentence on the order; reasons for steps go between the two.
    note:     the note block; "" chooses one that fits the steps.
    listed:   the prompt lists the allowed actions.
    """

    question: str
    lines: Sequence[Line]
    why: str = ""
    order: str = ""
    note: str = ""
    listed: bool = False


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its answer, in the schema of SciRecipe-Eval and SciRecipe.

    action:     the gold actions, each once, in order.
    action_new: what the prompt allows: the gold actions and distractors, shuffled; empty where it lists none.
    """

    id: str
    type: str
    level: str
    subfield: str
    protocol: str
    named: bool
    question: str
    think: str
    key: str
    orc: str
    note: str
    action: tuple[str, ...]
    action_new: tuple[str, ...]

    @property
    def answer(self) -> str:
        """The gold text."""
        return join_blocks(self.think, self.key, self.orc, self.note)


Builder = Callable[[Variant, random.Random], Draft | None]


def build(
    kind: str,
    builder: Builder,
    protocol: SourceProtocol,
    id: str,
    rng: random.Random,
    *,
    named: bool,
    library: Sequence[str],
    tokens: Callable[[str], int],
) -> Item | None:
    """Draw until an answer fits.

    Args:
      named: the question names its protocol.
      library: actions that distractors are drawn from.
      tokens: the length of an answer.

    Returns:
      An item, or None where the protocol has no item of this kind or none that fits.
    """
    for attempt in range(_TRIES):
        variant = Variant(protocol, rng)
        draft = builder(variant, rng)
        if draft is None:
            continue
        item = _finish(kind, draft, variant, id, rng, named, library, lean=attempt >= _TRIES // 4)
        if tokens(item.answer) <= MAX_ANSWER:
            return item
    return None


def _finish(
    kind, draft: Draft, variant: Variant, id: str, rng: random.Random, named: bool, library, lean: bool
) -> Item:
    # Lean: the think block has no more than the type itself says, so that long steps fit too.
    lines = draft.lines
    count = 2 if len(lines) < 4 and not draft.why and rng.random() < 0.3 else 1
    spoken = argue.reasons(lines, 0 if lean and draft.why else count, rng)
    think = " ".join(part for part in (draft.why, *spoken, draft.order) if part)
    actions = tuple(dict.fromkeys(line.step.action for line in lines))
    level = rng.choice((0, 1, 2)) if draft.listed else 0
    question = draft.question
    if named:
        question = f"{rng.choice(_NAMING).format(variant.protocol.name)} {question}"
    return Item(
        id=id,
        type=kind,
        level=str(level),
        subfield=variant.protocol.subfield,
        protocol=variant.protocol.name,
        named=named,
        question=question,
        think=think,
        key="\n".join(render_step(number, line.step) for number, line in enumerate(lines, 1)),
        orc="\n".join(f"Step {number}: {line.say}" for number, line in enumerate(lines, 1)),
        note=draft.note or argue.note(lines, [variant.text(text) for text in variant.protocol.notes], rng),
        action=actions,
        action_new=_library(actions, level, variant.protocol, library, rng) if draft.listed else (),
    )


_NAMING = ('The protocol is "{}".', 'We follow "{}".', 'This is about "{}".', 'Protocol: "{}".')


def _library(actions, level: int, protocol: SourceProtocol, library, rng: random.Random) -> tuple[str, ...]:
    """The gold actions among distractors: other actions of the protocol first, then any."""
    own = [action for step in protocol.steps if (action := step.action.lower()) not in actions]
    near = list(dict.fromkeys(own))
    far = [action for action in library if action not in actions and action not in near]
    rng.shuffle(near)
    wanted = _DISTRACTORS[level]
    others = near[: wanted // 2 + 1]
    others += rng.sample(far, max(0, wanted - len(others))) if len(far) >= wanted else far
    shown = [*actions, *others[:wanted]]
    rng.shuffle(shown)
    return tuple(shown)


def goal(variant: Variant, rng: random.Random) -> str:
    """Half of the time a sentence with the aim of the protocol, else ""."""
    aim = variant.text(variant.protocol.aim)
    forms = (f"The aim is to {aim}. ", f"We want to {aim}. ")
    return rng.choice(forms) if rng.random() < 0.5 else ""


def passage(lines: Sequence[Line]) -> str:
    """The steps as running text."""
    return " ".join(line.told for line in lines)


def bullets(lines: Sequence[Line]) -> str:
    """The steps as a list."""
    return "\n".join(f"- {line.told}" for line in lines)


def in_order(lines: Sequence[Line]) -> str:
    """The actions in the order of the answer, to be put into a question."""
    return ", ".join(line.step.action for line in lines)


def made_step(action: str, object: str, parameters: Sequence[str], say: str) -> Line:
    """A line that no source step stands for, as in a calculated mixture."""
    step = Step(action, (object.lower(),), tuple(text.lower() for text in parameters))
    return Line(step, say, say, "", "")
