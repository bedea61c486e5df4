"""The Thoth Task: laboratory protocols by Sketch-and-Fill, rewarded with SCORE."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from thoth_jax.data.builder.drills import sketched_drills
from thoth_jax.data.bundled import reader
from thoth_jax.errors import InputError, nearest
from thoth_jax.evaluation.structured import evaluator_blocks, structured_metrics
from thoth_jax.protocol import grammar, prompts
from thoth_jax.protocol.schema import ProtocolItem, read_documents, read_items
from thoth_jax.rewards.explain import explain_batch
from thoth_jax.rewards.score import ScoreConfig, score_batch
from thoth_jax.task import Completion, Example, Message, Rewards

logger = logging.getLogger(__name__)

BUNDLED = "bundled"
_BUNDLED_DRILLS = 2000


class ProtocolTask:
    """Protocol documents for pretraining, protocol items for the other stages.

    Splits of the bundled corpus: "train", "eval" (its validation protocols) and "test" (protocols that no choice was
    made on). Of files: "train" and "eval".

    Args:
      train: training file (JSON array or JSONL, any of the formats of protocol/schema.py), or "bundled".
      eval: held-out file; empty: the bundled corpus has its own split, of another file `holdout` is held out.
      holdout: share of the training rows (at least one) that is held out where there is no eval file.
      system_prompt: the system turn of every prompt; None: the row's own, else ours; "": no system turn.
      score: fields of ScoreConfig that differ from the default, for example {"order_mode": "lcs"}.
      skip_bad: malformed rows are counted and listed in the log, instead of refused.
      pool: training protocols of the bundled corpus: "sft", "rl" (those kept for RL alone) or "all".
      redraw: train on so many freshly drawn variants of the pool instead of its shipped items; 0: the shipped ones.
      drills: copy drills among the documents of stage pretrain, learnt from their second half only; -1: 2,000 of the
        bundled corpus, none of a file. Of a file they are made by the sketcher from its numbered lines.
      subtasks: the rows of parameter filling, step ordering and error correction join the bundled training items.
      seed: of redrawn items and drills.
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
        pool: str = "sft",
        redraw: int = 0,
        drills: int = -1,
        subtasks: bool = False,
        seed: int = 0,
    ):
        if not 0.0 <= holdout < 1.0:
            raise InputError(f"task_args.holdout={holdout}: must be at least 0 and below 1")
        reader.splits_of("train", pool)
        for key, value, least in (("redraw", redraw, 0), ("drills", drills, -1)):
            if value < least:
                raise InputError(f"task_args.{key}={value}: must be at least {least}")
        if train != BUNDLED and (redraw or subtasks):
            raise InputError("task_args.redraw and task_args.subtasks are of the bundled corpus, not of a file")
        self._files = {"train": train, "eval": eval}
        self._holdout = holdout
        self._system_prompt = system_prompt
        self._skip_bad = skip_bad
        self._pool, self._redraw, self._subtasks, self._seed = pool, redraw, subtasks, seed
        self._drills = drills if drills >= 0 else _BUNDLED_DRILLS * (train == BUNDLED)
        self.score_config = _score_config(score or {})

    def documents(self, split: str) -> list[str | tuple[str, str]]:
        """Protocols as plain text, and drills as pairs (given, wanted), for stage pretrain."""
        if self._from_bundle(split):
            return reader.documents(reader.splits_of(split, self._pool), self._drills, self._seed)
        texts = self._split(split, self._read_documents)
        return [*texts, *sketched_drills(texts, self._drills, self._seed)] if self._drills else texts

    def examples(self, split: str) -> list[Example]:
        """Protocol items, each as Example.data["item"]."""
        return [Example(item.id, {"item": item}) for item in self._items(split)]

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
        return {name: float(np.mean(values)) for name, values in self.judge(examples, completions).items()}

    def judge(self, examples: Sequence[Example], completions: Sequence[Completion]) -> dict[str, np.ndarray]:
        """The metrics of `evaluate` of each answer, float64 [B]."""
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
        return {name: np.asarray(values, np.float64) for name, values in metrics.items()}

    def cluster(self, example: Example) -> str:
        """The protocol that an item is of: items of one protocol are not independent. The item itself if unknown."""
        return example.data["item"].protocol or example.id

    def explain(self, examples: Sequence[Example], completions: Sequence[Completion]) -> list[dict]:
        """Why each answer got its SCORE, as `rewards.explain.Explanation.to_json`."""
        golds = [example.data["item"].key for example in examples]
        found = explain_batch([completion.text for completion in completions], golds, self.score_config)
        return [explanation.to_json() for explanation in found]

    def _items(self, split: str) -> list[ProtocolItem]:
        if not self._from_bundle(split):
            return self._split(split, self._read_items)
        names = reader.splits_of(split, self._pool)
        if split == "train" and self._redraw:
            items = reader.redrawn(names, self._redraw, self._seed)
        else:
            items = reader.items(names)
        return [*items, *reader.subtasks()] if split == "train" and self._subtasks else items

    def _from_bundle(self, split: str) -> bool:
        return self._files["train"] == BUNDLED and not (split == "eval" and self._files["eval"])

    def _split(self, split: str, read) -> list:
        if split not in self._files:
            raise ValueError(f"split {split!r}: there are train and eval")
        if split == "eval" and self._files["eval"]:
            return read(self._files["eval"])
        return self._held_out(read(self._files["train"]), split)

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

    def _read_documents(self, path: str) -> list[str]:
        documents, bad = read_documents(path, self._skip_bad)
        self._report(path, bad)
        return documents

    def _read_items(self, path: str) -> list[ProtocolItem]:
        items, bad = read_items(path, self._skip_bad)
        self._report(path, bad)
        return items

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
