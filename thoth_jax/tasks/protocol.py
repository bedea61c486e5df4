"""The Thoth Task: laboratory protocols by Sketch-and-Fill, rewarded with SCORE."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from thoth_jax.data import bundled
from thoth_jax.errors import InputError, nearest
from thoth_jax.evaluation.structured import evaluator_blocks, structured_metrics
from thoth_jax.protocol import grammar, prompts
from thoth_jax.protocol.schema import ProtocolItem, read_documents, read_items, read_rows
from thoth_jax.rewards.score import ScoreConfig, score_batch
from thoth_jax.task import Completion, Example, Message, Rewards

logger = logging.getLogger(__name__)

BUNDLED = "bundled"


class ProtocolTask:
    """Protocol documents for pretraining, protocol items for the other stages.

    Args:
      train: training file (JSON array or JSONL, any of the formats of protocol/schema.py), or "bundled".
      eval: held-out file; empty: the bundled one has its own split, of another file `holdout` is held out.
      holdout: share of the training rows (at least one) that is held out where there is no eval file.
      system_prompt: the system turn of every prompt; None: the row's own, else ours; "": no system turn.
      score: fields of ScoreConfig that differ from the default, for example {"order_mode": "lcs"}.
      skip_bad: malformed rows are counted and listed in the log, instead of refused.
    """

    name = "protocol"

    def __init__(
        self,
        train: str = BUNDLED,
        eval: str = "",
        holdout: float = 0.1,
        system_prompt: str | None = None,
        score: Mapping | None = None,
        skip_bad: bool = False,
    ):
        if not 0.0 <= holdout < 1.0:
            raise InputError(f"task_args.holdout={holdout}: must be at least 0 and below 1")
        self._files = {"train": train, "eval": eval}
        self._holdout = holdout
        self._system_prompt = system_prompt
        self._skip_bad = skip_bad
        self.score_config = _score_config(score or {})

    def documents(self, split: str) -> list[str]:
        """Protocols as plain text, for stage pretrain."""
        return self._split(split, self._read_documents)

    def examples(self, split: str) -> list[Example]:
        """Protocol items, each as Example.data["item"]."""
        return [Example(item.id, {"item": item}) for item in self._split(split, self._read_items)]

    def messages(self, example: Example) -> list[Message]:
        """System turn (unless it is switched off) and user turn."""
        turns = prompts.messages(example.data["item"])
        if self._system_prompt is None:
            return turns
        user = [turn for turn in turns if turn["role"] != "system"]
        return [{"role": "system", "content": self._system_prompt}, *user] if self._system_prompt else user

    def target(self, example: Example) -> str:
        """The gold answer with its four blocks.

        Raises:
          InputError: the row has none (an evaluation row with key and orc only).
        """
        item: ProtocolItem = example.data["item"]
        if not item.answer:
            raise InputError(
                f"{item.where}: field 'think' is missing: a training row needs the whole answer, not only key and orc"
            )
        return item.answer

    def check_gold(self, example: Example) -> None:
        """Refuse an item whose gold key block cannot be read, before anything is sampled.

        Raises:
          InputError: naming file and line.
        """
        item: ProtocolItem = example.data["item"]
        try:
            grammar.parse_key_block(item.key)
        except ValueError as error:
            raise InputError(f"{item.where}: the gold answer has no key block that can be scored ({error})") from None

    def reward(self, examples: Sequence[Example], completions: Sequence[Completion]) -> Rewards:
        """SCORE of each completion against its gold key; the components are the parts."""
        try:
            score = score_batch(
                [c.text for c in completions], [e.data["item"].key for e in examples], self.score_config
            )
        except ValueError as error:
            where = sorted({e.data["item"].where for e in examples})
            raise InputError(f"{where[0]}{' and others' if len(where) > 1 else ''}: {error}") from None
        parts = {name: np.asarray(getattr(score, name), np.float32) for name in _PARTS}
        total = np.asarray(score.total, np.float32)
        return Rewards(total=total, parts=parts, valid=np.ones(len(total), bool), raw=total)

    def evaluate(self, examples: Sequence[Example], completions: Sequence[Completion]) -> dict[str, float]:
        """Mean SCORE, how many answers pass each gate, and the structured metrics of SciRecipe-Eval."""
        rewards = self.reward(examples, completions)
        predicted = [evaluator_blocks(completion.text)[0] for completion in completions]
        structured = structured_metrics(predicted, [example.data["item"].key for example in examples])
        metrics = {
            "score": rewards.total,
            "format_rate": rewards.parts["format_gate"],
            "consistency_rate": rewards.parts["consistency_gate"],
            **{
                name: structured[name]
                for name in ("step_match", "order_strict", "order_lcs", "order_tau", "content_score")
            },
            "steps": [len([line for line in key.split("\n") if line.strip()]) for key in predicted],
        }
        return {name: float(np.mean(np.asarray(values, np.float64))) for name, values in metrics.items()}

    def _split(self, split: str, read) -> list:
        if split not in self._files:
            raise ValueError(f"split {split!r}: there are train and eval")
        if self._files["train"] == BUNDLED and not (split == "eval" and self._files["eval"]):
            return read(str(self._bundled(read)), split)
        if split == "eval" and self._files["eval"]:
            return read(self._files["eval"], None)
        return self._held_out(read(self._files["train"], None), split)

    def _bundled(self, read):
        return bundled.path("protocols.jsonl" if read == self._read_documents else "items.jsonl")

    def _held_out(self, rows: list, split: str) -> list:
        if self._files["eval"] or self._holdout == 0.0:
            return rows
        if len(rows) < 2:
            raise InputError(
                f"{self._files['train']}: one row cannot be split; give task_args.eval, or task_args.holdout=0"
            )
        count = min(len(rows) - 1, max(1, round(self._holdout * len(rows))))
        held = set(np.random.default_rng(0).permutation(len(rows))[:count].tolist())
        return [row for number, row in enumerate(rows) if (number in held) == (split == "eval")]

    def _read_documents(self, path: str, bundled_split: str | None) -> list[str]:
        documents, bad = read_documents(path, self._skip_bad)
        self._report(path, bad)
        if bundled_split is None:
            return documents
        return documents[:-2] if bundled_split == "train" else documents[-2:]

    def _read_items(self, path: str, bundled_split: str | None) -> list[ProtocolItem]:
        items, bad = read_items(path, self._skip_bad)
        self._report(path, bad)
        if bundled_split is None:
            return items
        splits = [row.data["split"] for row in read_rows(path).rows]
        return [item for item, own in zip(items, splits, strict=True) if own == bundled_split]

    def _report(self, path: str, bad: list[str]) -> None:
        if bad:
            logger.warning("%s: %d bad rows skipped:\n  %s", path, len(bad), "\n  ".join(bad))


# The components of a Score that are logged.
_PARTS = ("format_gate", "consistency_gate", "coverage", "step_scale", "order", "content", "semantics")


def _score_config(fields: Mapping) -> ScoreConfig:
    valid = ScoreConfig.__dataclass_fields__
    for name in fields:
        if name not in valid:
            raise InputError(f"task_args.score.{name}: ScoreConfig has no field {name!r}{nearest(name, valid)}")
    try:
        return ScoreConfig(**fields)
    except (TypeError, ValueError) as error:
        raise InputError(f"task_args.score: {error}") from None
