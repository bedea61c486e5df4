"""Which protocol is for training, for RL training only, for validation and for test; decided by their words alone."""

import collections
import re
from collections.abc import Sequence

from thoth_jax.data.builder.source import SourceProtocol
from thoth_jax.errors import InputError

SFT, RL, VALIDATION, TEST = "train", "rl", "validation", "test"
SPLITS = (SFT, RL, VALIDATION, TEST)

# Shares of all protocols; of 96 they make 24 for test, 12 for validation, 18 for RL, 42 for SFT.
TEST_SHARE, VALIDATION_SHARE, RL_SHARE = 1 / 4, 1 / 8, 3 / 16
# Share of a subfield that is held out at most: what is left must still teach its words.
_MOST_HELD_OUT = 1 / 2
_LEAST_PROTOCOLS = 8

_WORD = re.compile(r"[^\W\d_]+")


def words_of(protocol: SourceProtocol) -> set[str]:
    """The words of a protocol's steps and remedies, lower-cased, numbers left out."""
    remedies = [*protocol.faults, *protocol.limits, *protocol.safety]
    steps = [*protocol.steps, *(step for remedy in remedies for step in remedy.fix)]
    texts = [text for step in steps for text in (step.action, step.say, step.prose, *step.objects)]
    texts += [quantity.template for step in steps for quantity in step.parameters]
    return {word for text in texts for word in _WORD.findall(text.lower()) if len(word) > 1}


def assign(protocols: Sequence[SourceProtocol]) -> dict[str, str]:
    """{name: split}.

    Protocols are held out one by one: always the one that has the fewest words of its own, those that no protocol left
    for training has, subfields taking turns; the first of every subfield are for test, the next for validation, the
    rest for test. The RL protocols are then taken from training in the same way.

    Raises:
      InputError: fewer than eight protocols.
    """
    if len(protocols) < _LEAST_PROTOCOLS:
        raise InputError(f"{len(protocols)} protocols cannot be split; at least {_LEAST_PROTOCOLS} are needed")
    words = {protocol.name: words_of(protocol) for protocol in protocols}
    fields: dict[str, list[str]] = {}
    for protocol in protocols:
        fields.setdefault(protocol.subfield, []).append(protocol.name)
    test, validation, rl = (round(len(words) * share) for share in (TEST_SHARE, VALIDATION_SHARE, RL_SHARE))
    most = {field: max(1, int(len(names) * _MOST_HELD_OUT)) for field, names in fields.items()}
    split = dict.fromkeys(words, SFT)
    held = _take(fields, words, split, test + validation, most)
    for place, name in enumerate(held):
        first = min(len(fields), test)
        split[name] = VALIDATION if first <= place < first + validation else TEST
    for name in _take(fields, words, split, rl, dict.fromkeys(fields, rl)):
        split[name] = RL
    return split


def _take(fields, words: dict[str, set[str]], split: dict[str, str], count: int, most: dict[str, int]) -> list[str]:
    """`count` training protocols, subfields taking turns, at most `most` of each."""
    left = [name for name in words if split[name] == SFT]
    taken: list[str] = []
    while len(taken) < count:
        before = len(taken)
        for field, names in fields.items():
            own = [name for name in names if name in left]
            if len(taken) < count and own and len([name for name in names if name in taken]) < most[field]:
                taken.append(_least_own(left, words, own))
                left.remove(taken[-1])
        if len(taken) == before:
            break
    return taken


def _least_own(left, words: dict[str, set[str]], names: Sequence[str]) -> str:
    counts = collections.Counter(word for name in left for word in words[name])
    return min(names, key=lambda name: (sum(counts[word] == 1 for word in words[name]) / len(words[name]), name))
