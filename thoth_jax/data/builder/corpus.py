"""The whole corpus: sources with their splits, shipped items, and endless redrawn ones."""

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence

from thoth_jax.data.builder import comprehension, items, planning, remedies, scaling, splits, subtasks
from thoth_jax.data.builder.items import Item
from thoth_jax.data.builder.source import SourceProtocol

BUILDERS: dict[str, items.Builder] = {
    "overview_qa": comprehension.overview,
    "specific_step_qa": comprehension.specific,
    "retrieval": comprehension.retrieval,
    "planning": planning.planning,
    "troubleshooting": remedies.troubleshooting,
    "constraint": remedies.constraint,
    "scaling": scaling.scaling,
    "safety": remedies.safety,
}
# Shipped items of each protocol: two of each type, and two more of the four types that draw from all steps.
ITEMS_EACH = 18
_ROUNDS_OF_ALL = 16
SUBTASKS_EACH = 3
SEED = 0


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Protocols in the order of their files, and the split of each."""

    protocols: tuple[SourceProtocol, ...]
    split: dict[str, str]

    def of(self, *names: str) -> list[SourceProtocol]:
        """The protocols of some splits."""
        return [protocol for protocol in self.protocols if self.split[protocol.name] in names]

    @functools.cached_property
    def library(self) -> tuple[str, ...]:
        """All actions of the training protocols: what distractors are drawn from."""
        trained = self.of(splits.SFT, splits.RL)
        return tuple(sorted({step.action.lower() for protocol in trained for step in protocol.steps}))


def corpus_of(protocols: Sequence[SourceProtocol]) -> Corpus:
    """Protocols with their splits assigned."""
    return Corpus(tuple(protocols), splits.assign(protocols))


def slug(name: str) -> str:
    """A name as part of an id.

    >>> slug("Gram stain of a smear")
    'gram-stain-of-a-smear'
    """
    return "-".join("".join(char if char.isalnum() else " " for char in name.lower()).split())


def shipped_items(corpus: Corpus, tokens: Callable[[str], int]) -> list[Item]:
    """The fixed items, round by round over the protocols, so that every beginning of the list is a mixture."""
    kinds, found = list(BUILDERS), []
    for number in range(ITEMS_EACH):
        for place, protocol in enumerate(corpus.protocols):
            kind = kinds[(number + place) % (len(kinds) if number < _ROUNDS_OF_ALL else 4)]
            if kind == "scaling" and protocol.mix is None:
                kind = kinds[number % 4]  # one more of the four types that draw from all steps
            id = f"{slug(protocol.name)}-{kind}-{number}"
            item = _item(corpus, protocol, kind, id, random.Random(f"items:{SEED}:{id}"), number % 2 == 0, tokens)
            if item:
                found.append(item)
    return found


def redrawn_items(
    corpus: Corpus, names: Sequence[str], seed: int, tokens: Callable[[str], int], kinds: Sequence[str] = ()
) -> Iterator[Item]:
    """Sound variants without end: quantities, names, order and choice of steps, wording of the questions.

    Args:
      names: splits whose protocols are used.
      seed: the same seed gives the same items; item n depends on (seed, n) alone.
      kinds: task types; empty: all.
    """
    protocols, kinds = corpus.of(*names), list(kinds or BUILDERS)
    number = -1
    while True:
        number += 1
        rng = random.Random(f"redraw:{seed}:{number}")
        protocol, kind = rng.choice(protocols), rng.choice(kinds)
        if kind == "scaling" and protocol.mix is None:
            continue
        item = _item(corpus, protocol, kind, f"redraw-{seed}-{number}", rng, rng.random() < 0.5, tokens)
        if item:
            yield item


def _item(corpus: Corpus, protocol, kind, id, rng, named, tokens) -> Item | None:
    return items.build(
        kind, BUILDERS[kind], protocol, id, rng, named=named, library=corpus.library, tokens=tokens
    )  # fmt: skip


def subtask_rows(corpus: Corpus) -> list[dict]:
    """The rows of the smaller SFT tasks, for the protocols that SFT trains on."""
    rows, kinds = [], list(subtasks.KINDS)
    for number in range(SUBTASKS_EACH * len(kinds)):
        for place, protocol in enumerate(corpus.of(splits.SFT)):
            kind = kinds[(number + place) % len(kinds)]
            id = f"{slug(protocol.name)}-{kind}-{number}"
            row = subtasks.row(kind, protocol, id, random.Random(f"subtasks:{SEED}:{id}"))
            if row:
                rows.append(row)
    return rows
