"""The think and note blocks: why each step, why this order, which hazard."""

import random
import re
from collections.abc import Mapping, Sequence

from thoth_jax.data.builder.draw import Line, capital

_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six")


def reasons(lines: Sequence[Line], count: int, rng: random.Random) -> list[str]:
    """Why `count` of the steps are done, in the order of the steps."""
    able = [number for number, line in enumerate(lines) if line.brief and line.why]
    # Twice as many as asked for, and of these the shorter ones.
    drawn = rng.sample(able, min(2 * count, len(able)))
    chosen = sorted(sorted(drawn, key=lambda number: len(lines[number].why + lines[number].brief))[:count])
    return [_reason(lines[number], number + 1, rng) for number in chosen]


def _reason(line: Line, number: int, rng: random.Random) -> str:
    forms = (
        f"Step {number}, {line.brief}: {line.why}.",
        f"{capital(line.brief)} (step {number}), because {line.why}.",
        f"{capital(line.why)}, so {line.brief} in step {number}.",
    )
    return rng.choice(forms)


def order(lines: Sequence[Line], needs: Mapping[str, frozenset[str]], rng: random.Random) -> str:
    """Why the steps stand in this order: what needs what, and where the order is free.

    A need is not always a material one (an egg is collected once the needle is ready), so the sentences speak of order.
    """
    ids = [line.id for line in lines]
    direct = [[n for n in range(k) if ids[n] in needs[ids[k]]] for k in range(len(ids))]
    if all(direct[k] and direct[k][-1] == k - 1 for k in range(1, len(ids))):
        return rng.choice(
            (
                "Each step can start only when the one before is done.",
                "No step can move, for each needs the one before.",
                f"The order is fixed: step {len(ids)} needs all the others.",
            )
            if len(ids) > 2
            else ("Step 2 can start only after step 1.", "Step 2 needs step 1 before it.", "Step 1 must come first.")
        )
    last = len(ids) - 1
    if direct[last] and len(direct[last]) == last and len(ids) > 2:
        return f"Step {last + 1} can start only after {_numbers(direct[last])}."
    for k in range(last, 0, -1):
        if not direct[k]:
            return rng.choice(
                (
                    f"Step {k + 1} needs no earlier step, so it could also come first.",
                    f"Step {k + 1} is free of the steps before it.",
                )
                if k > 1
                else ("Steps 1 and 2 do not need each other.", "Step 2 does not need step 1: that order is free.")
            )
    k = next(k for k in range(1, len(ids)) if len(direct[k]) < k)
    return f"Step {k + 1} needs {_numbers(direct[k])}."


def _numbers(places: Sequence[int]) -> str:
    shown = [str(place + 1) for place in places]
    if len(shown) == 1:
        return f"step {shown[0]}"
    return f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def count_word(number: int) -> str:
    """2 -> "two"."""
    return _NUMBER_WORDS[number]


# What a step holds -> what to mind, the graver first.
_HAZARDS = (
    (r"\bphenol\b(?! red)|chloroform|trizol", "Work with the solvent in the fume hood and wear nitrile gloves."),
    (r"formaldehyde|glutaraldehyde|fixative|formalin", "Fixative is toxic: use the fume hood, wear gloves."),
    (r"guanidin", "Guanidine and bleach form a toxic gas: never let them meet."),
    (r"mercaptoethanol", "Mercaptoethanol is toxic and stinks: use the fume hood."),
    (r"acrylamide(?! gel)", "Liquid acrylamide is toxic: wear gloves and a coat."),
    (r"ethidium|cycloheximide|hydroxyurea", "The reagent is toxic: wear gloves and a coat."),
    (r"\bnaoh\b|sodium hydroxide|\bhcl\b|\w acid\b|alkali", "Acid and alkali burn: wear goggles and gloves."),
    (r"liquid nitrogen|dry ice|-80 °c|frozen vial", "Wear cold-proof gloves and a face shield."),
    (r"uv\b|ultraviolet", "Shield eyes and skin from ultraviolet light."),
    (r"methanol|ethanol|isopropanol|acetone|flame|xylene", "Keep the solvent away from open flames."),
    (r"needle|scalpel|blade|razor|syringe|microtome", "Put used blades and needles in the sharps bin."),
    (r"autoclave|boil|molten|microwave|\b(?:9\d|100|121) °c", "Hot liquid scalds: use heat gloves and open slowly."),
    (r"\d x g\b|centrifug|\bspin ", "Balance the rotor before each spin."),
    (r"\bv\b|gel chamber|electro", "Switch the power off before you open the chamber."),
    (r"sonicat", "Wear ear protection near the sonicator."),
    (r"laser", "Never look into the laser beam."),
    (r"bacteri|colon|culture|coli\b|phage|virus", "Collect all culture waste for the autoclave."),
    (r"serum|blood|(?<!red )(?<!one-)\bcells?\b", "Wear gloves with living material and bin it as biological waste."),
    (r"mouse|mice|rat\b|animal", "Follow the approved animal protocol."),
    (r"stain|dye|probe|antibod", "Wear gloves, for dyes stain and some are toxic."),
    (r"rna\b|rnase|cdna", "Change gloves often, for skin carries RNases."),
)  # fmt: skip
_GRAVE = 9
_HAZARDS = tuple((place < _GRAVE, re.compile(pattern), text) for place, (pattern, text) in enumerate(_HAZARDS))
_PLAIN = (
    "Wear gloves and label every tube.",
    "Wear a lab coat and gloves throughout.",
    "Wipe up spills at once and wear gloves.",
)


def note(lines: Sequence[Line], advice: Sequence[str], rng: random.Random) -> str:
    """A warning or advice that fits one of the steps.

    The step's own hazard where the source has one; else a grave hazard that its words call for; else the advice of the
    protocol that speaks of the same things; else a lesser hazard; else advice that shares a word with the steps.
    """
    own = [line.hazard for line in lines if line.hazard]
    if own:
        return own[0]
    words = " ".join(map(_words, lines))
    called = [(grave, text) for grave, pattern, text in _HAZARDS if pattern.search(words)]
    shared = {text: len(_stems(text) & _stems(words)) for text in advice}
    fitting = [text for text, count in shared.items() if count >= 2]
    if called and called[0][0]:
        return called[0][1]
    if fitting:
        return min(fitting, key=len)
    if called:
        return called[0][1]
    near = [text for text, count in shared.items() if count]
    return min(near, key=len) if near else rng.choice(_PLAIN)


def _stems(text: str) -> set[str]:
    """The beginnings of its longer words; enough to tell whether two texts speak of the same things."""
    return {word[:6] for word in re.findall(r"[a-z]{5,}", text.lower())} - _COMMON


_COMMON = {"before", "after", "until", "other", "their", "which", "first", "never", "every", "about", "fresh", "clean"}


def _words(line: Line) -> str:
    return " ".join((line.step.action, *line.step.objects, *line.step.parameters, line.say, line.prose)).lower()
