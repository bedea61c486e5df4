"""SCORE: the structured reward of the paper, gates x scale x semantics, over a batch of answers.

    SCORE = format_gate * consistency_gate * step_scale * (order + content)          (paper section 3.3)

Every place where the published sources disagree is an option of `ScoreConfig`; the defaults are the paper's text and
figure 2. Range in the default: 0 to 2.5.
"""

import contextlib
import dataclasses
import gc
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from thoth_jax.protocol.columns import Columns
from thoth_jax.protocol.scan import Answers, GoldError, read_answers, read_golds
from thoth_jax.rewards import coverage, encoding, kernels

_CHOICES = {
    "coverage": ("token", "item"),
    "length_penalty": ("proportional", "printed", "none"),
    "order_mode": ("strict", "exact", "lcs"),
    "alignment": ("greedy", "greedy_reference", "lcs"),
    "content_denominator": ("matched", "max_length"),
    "object_match": ("set_or_token", "set"),
    "parameter_match": ("token", "set"),
    "combine": ("sum", "product"),
    "final_combine": ("product", "sum"),
}

# The names and values that the authors' launch script sets.
_ENVIRONMENT = {
    "GRPO_ORDER_MODE": ("order_mode", {"strict_subseq": "strict", "lcs": "lcs"}),
    "GRPO_COMBINE_MODE": ("combine", {"sum": "sum", "product": "product"}),
    "GRPO_CONTENT_DENOM": ("content_denominator", {"matched": "matched", "max_len": "max_length"}),
    "GRPO_FINAL_COMBINE": ("final_combine", {"product": "product", "sum": "sum"}),
}


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    """How SCORE is computed.

    Format gate:
      strict_numbering, allow_outer_text, require_note: as in `protocol.grammar.parse`.
      use_format_gate: off: the gate is 1 and a key block that can be parsed is scored wherever it stands.

    Consistency gate:
      coverage: "token": share of the stems of each key step that its orc step has, stop words left out; "item": share
        of its strings that are literally part of it (refuses most of the authors' own gold answers).
      coverage_threshold: the gate opens from here on.
      require_numbers: every number of a key step must be in its orc step.
      use_consistency_gate: off: the gate is 1.

    Step scale f(d) / g(Lbar), d the difference in the number of steps, Lbar the mean words of an orc step:
      scale_fraction: f is 0 from M = max(1, floor(scale_fraction * N_gold)) on.
      max_words, length_penalty: above max_words g is Lbar / max_words ("proportional") or Lbar ("printed": as in the
        paper's equation 3), "none": 1.
      use_step_scale: off: f = 1. use_length_penalty: off: g = 1.

    Semantics, order and content:
      order_mode: "strict": 1 if the actions are equal or one list is a subsequence of the other, else 0; "exact": 1 if
        equal; "lcs": 2 LCS / (n + m).
      alignment: "greedy" (figure 2), "greedy_reference" (the published evaluator: an action that is not found ends the
        alignment), "lcs".
      content_denominator: "matched" pairs, or "max_length" = max(n, m).
      object_match: "set_or_token": set IoU, where it is 0 the IoU of the evaluator's tokens; "set".
      object_threshold: parameters count only where Obj reaches it.
      parameter_match: "token" IoU or "set" IoU.
      parameter_weight: of Par beside Obj.
      decay_power: lambda of m_ij = 1 - (|i - j| / N_gold)^lambda. use_decay: off: m_ij = 1.
      use_order: off: Order is left out of the sum, 1 in the product.
      combine: order + content ("sum") or order * content ("product").
      final_combine: step_scale * semantics ("product") or step_scale + semantics ("sum").

    Raises:
      ValueError: a value that is not one of the above or out of range.
    """

    strict_numbering: bool = True
    allow_outer_text: bool = False
    require_note: bool = True
    coverage: str = "token"
    coverage_threshold: float = 0.95
    require_numbers: bool = False
    scale_fraction: float = 0.6
    max_words: float = 30
    length_penalty: str = "proportional"
    order_mode: str = "strict"
    alignment: str = "greedy"
    content_denominator: str = "matched"
    object_match: str = "set_or_token"
    object_threshold: float = 0.5
    parameter_match: str = "token"
    parameter_weight: float = 0.5
    decay_power: float = 1.5
    combine: str = "sum"
    final_combine: str = "product"
    use_format_gate: bool = True
    use_consistency_gate: bool = True
    use_step_scale: bool = True
    use_length_penalty: bool = True
    use_decay: bool = True
    use_order: bool = True

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            where = f"ScoreConfig.{field.name} = {value!r}"
            if field.name in _CHOICES:
                if value not in _CHOICES[field.name]:
                    raise ValueError(f"{where}: expected one of {', '.join(map(repr, _CHOICES[field.name]))}")
            elif isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise ValueError(f"{where}: expected True or False")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"{where}: expected a number")
            elif field.name in ("coverage_threshold", "object_threshold", "scale_fraction"):
                if not 0 <= value <= 1:
                    raise ValueError(f"{where}: expected a share from 0 to 1")
            elif value < 0 or (value == 0 and field.name != "parameter_weight"):
                raise ValueError(f"{where}: expected a positive number")

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **settings) -> "ScoreConfig":
        """The configuration that the authors' variables ask for: GRPO_ORDER_MODE, GRPO_COMBINE_MODE,
        GRPO_CONTENT_DENOM, GRPO_FINAL_COMBINE, with their values (strict_subseq, max_len) or ours.

        Args:
          environment: default os.environ.
          settings: other fields; a variable that is set goes before them.

        Raises:
          ValueError: a variable with another value.
        """
        environment = os.environ if environment is None else environment
        for variable, (field, values) in _ENVIRONMENT.items():
            value = environment.get(variable, "").strip().lower()
            if value:
                value = values.get(value, value)
                if value not in _CHOICES[field]:
                    raise ValueError(f"{variable}={value!r}: expected one of {', '.join(map(repr, values))}")
                settings[field] = value
        return cls(**settings)


class Score(NamedTuple):
    """SCORE of B answers: float32 [B] each, and the reasons [B] why a gate refused ("" where none did).

    An answer that the format gate refuses has 0 everywhere (but a gate that is off is 1); one that the consistency gate
    refuses has a total of 0 and its other components as they are. step_scale is f / g.
    """

    total: np.ndarray
    format_gate: np.ndarray
    consistency_gate: np.ndarray
    coverage: np.ndarray
    step_scale: np.ndarray
    order: np.ndarray
    content: np.ndarray
    semantics: np.ndarray
    reasons: list[str]


COMPONENTS = Score._fields[:-1]


def score_batch(
    outputs: Sequence[str],
    golds: Sequence[str],
    config: ScoreConfig = ScoreConfig(),  # noqa: B008
    mesh: jax.sharding.Mesh | None = None,
) -> Score:
    """SCORE of each output against its gold.

    Args:
      outputs: [B] model texts, any.
      golds: [B] full gold answers, or the lines of a key block with or without its tags. Equal golds are read once. A
        gold step may say `"after": [step numbers]` (see `grammar.parse_gold`): then every order that keeps to that is
        right, for Order and for the alignment alike; an output that says it fails the format gate.
      config: see `ScoreConfig`.
      mesh: shard the B rows over all axes of this mesh; the values are those of one device to 1e-6. None: the default
        device.

    Raises:
      ValueError: the lists differ in length; a gold that cannot be parsed (names its row); a mesh with devices of
        other processes (score the rows of a process in that process).
    """
    if len(outputs) != len(golds):
        raise ValueError(f"{len(outputs)} outputs but {len(golds)} golds")
    with _no_collection():
        return _score_batch(outputs, golds, config, mesh)


@contextlib.contextmanager
def _no_collection():
    """Parsing makes many objects and no cycles: garbage collection would walk all of them, and JAX's, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _score_batch(outputs: Sequence[str], golds: Sequence[str], config: ScoreConfig, mesh) -> Score:
    gold_steps, after, gold_of = _read_golds(golds)
    answers = read_answers(
        outputs,
        salvage=not config.use_format_gate,
        one_by_one=config.coverage == "item" or config.require_numbers,
        strict_numbering=config.strict_numbering,
        allow_outer_text=config.allow_outer_text,
        require_note=config.require_note,
    )
    scored, reasons = answers.parsed, answers.reasons
    format_gate = scored.astype(np.float32) if config.use_format_gate else np.ones(len(outputs), np.float32)
    share, consistency_gate, mean_words = _consistency(answers, reasons, config)

    size = len(outputs)
    pairs = pair_scores(answers.columns, gold_steps, gold_of, config, coverage.canonical_all, after, mesh)
    gold_count = gold_steps.count.astype(np.int32)[gold_of]
    gates = kernels.Gates(
        format_gate=format_gate,
        consistency_gate=consistency_gate,
        scored=scored.astype(np.float32),
        predicted_count=answers.columns.count.astype(np.int32),
        gold_count=gold_count,
        # The addend makes 0.29 * 100 floor to 29.
        scale_limit=np.maximum(1, np.floor(config.scale_fraction * gold_count + 1e-9)).astype(np.float32),
        mean_words=mean_words,
    )
    rule = kernels.Combination(
        order_product=config.combine == "product",
        final_sum=config.final_combine == "sum",
        max_words=np.float32(config.max_words),
        penalty_unit=np.float32(config.max_words if config.length_penalty == "proportional" else 1),
        use_step_scale=config.use_step_scale,
        use_length_penalty=config.use_length_penalty and config.length_penalty != "none",
        use_order=config.use_order,
    )
    order, content = pairs["order"] * gates.scored, pairs["content"]
    padded = encoding.shard([_pad(array, encoding.bucket(size)) for array in (*gates, order, content)], mesh)
    combined = kernels.combine(kernels.Gates(*padded[:-2]), padded[-2], padded[-1], rule)
    step_scale, semantics, total = (np.asarray(array)[:size] for array in combined)
    return Score(total, format_gate, consistency_gate, share, step_scale, order, content, semantics, reasons)


def options_of(config: ScoreConfig) -> kernels.Options:
    """What the kernels need of a configuration."""
    return kernels.Options(
        order_exact=config.order_mode == "exact",
        order_lcs=config.order_mode == "lcs",
        object_token=config.object_match == "set_or_token",
        parameter_token=config.parameter_match == "token",
        parameter_weight=np.float32(config.parameter_weight),
        object_threshold=np.float32(config.object_threshold),
        per_longest=config.content_denominator == "max_length",
        decay_power=np.float32(config.decay_power),
        use_decay=config.use_decay,
    )


def pair_scores(
    predictions: Columns, golds: Columns, gold_of, config: ScoreConfig, canonical, after=None, mesh=None
) -> dict[str, np.ndarray]:
    """The kernels' `PairScores` of the steps of B rows against their golds, as float32 arrays [B].

    Args:
      predictions: the steps of B rows.
      golds: the steps of G golds.
      gold_of: [B] the gold of each prediction.
      config: order_mode, alignment, the matches, weights, denominator and decay are used.
      canonical, after: see `encoding.encode`.
      mesh: see `score_batch`.
    """
    options = options_of(config)
    size = predictions.count.shape[0]
    found = {name: np.zeros(size, np.float32) for name in kernels.VALUES}
    if not size:
        return found
    batches = encoding.encode(predictions, golds, gold_of, canonical, after)
    results = [
        kernels.pair_scores(
            encoding.shard(batch.predicted, mesh),
            batch.gold,
            encoding.shard(batch.gold_row, mesh),
            options,
            config.alignment,
            None if batch.before is None else (batch.before, batch.partial),
        )
        for batch in batches
    ]
    for batch, scores in zip(batches, results, strict=True):
        for name in kernels.VALUES:
            found[name][batch.rows] = np.asarray(getattr(scores, name))[: batch.rows.shape[0]]
    return found


def _read_golds(golds: Sequence[str]):
    """The steps of the distinct golds, what they follow, and which of them each row has."""
    numbers = dict.fromkeys(golds)
    numbers = dict(zip(numbers, range(len(numbers)), strict=True))
    try:
        columns, after = read_golds(list(numbers))
    except GoldError as error:
        raise ValueError(f"golds[{golds.index(list(numbers)[error.number])}]: {error}") from None
    return columns, after, np.fromiter(map(numbers.__getitem__, golds), np.int64, len(golds))


def _consistency(answers: Answers, reasons: list[str], config: ScoreConfig):
    """Coverage, the consistency gate and Lbar, float32 [B] each; adds the gate's reasons."""
    scored = answers.parsed
    words = coverage.words_of(answers)
    rows = np.nonzero(scored)[0]
    found, total = words.found, words.total
    if config.coverage == "item":
        found, total = np.zeros((2, scored.shape[0]), np.int64)
        found[rows], total[rows] = coverage.item_coverage([answers.sketches[row] for row in rows])
    exact = found / np.maximum(total, 1)  # float64: 19 of 20 reaches 0.95
    share = exact.astype(np.float32)
    mean_words = (words.orc_words / np.maximum(answers.orc_lines, 1)).astype(np.float32)
    if not config.use_consistency_gate:
        return share, np.ones(scored.shape, np.float32), mean_words
    passes = exact >= config.coverage_threshold
    lost = np.zeros(scored.shape, np.int64)
    if config.require_numbers:
        lost[rows] = coverage.missing_numbers([answers.sketches[row] for row in rows])
    gate = scored & passes & (lost == 0)
    for row in np.nonzero(scored & ~gate)[0]:
        reasons[row] = f"missing_numbers:{lost[row]}" if passes[row] else "low_coverage"
    return share, gate.astype(np.float32), mean_words


def _pad(array: np.ndarray, size: int) -> np.ndarray:
    padded = np.ones(size, array.dtype)
    padded[: array.shape[0]] = array
    return padded
