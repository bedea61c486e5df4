"""Why an answer got its SCORE: the formula with its numbers, and each step beside the gold step it is compared with."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thoth_jax.protocol import grammar
from thoth_jax.protocol.columns import columns_of
from thoth_jax.protocol.grammar import Sketch, Step
from thoth_jax.rewards import coverage, encoding, kernels
from thoth_jax.rewards.score import COMPONENTS, Score, ScoreConfig, options_of, score_batch

# What a step can be: its content is the gold's, its action only, no gold step goes with it; or a gold step left out.
STATUSES = ("matched", "mismatched", "added", "missing")
# Of an answer that never ends so much is shown.
_SHOWN_STEPS = 40
_SHOWN_LETTERS = 400


@dataclasses.dataclass(frozen=True)
class ExplainedStep:
    """A step of the answer or, with status "missing", of the gold.

    status: one of STATUSES. "matched": same action, objects and parameters as SCORE compares them (Obj = Par = 1);
      "mismatched": same action, but objects or parameters differ.
    number, gold_number: from 1; 0 where there is none.
    step, gold: None where there is none.
    obj, par, decay: of the pair, as in SCORE; its content is decay * (obj + parameter_weight * par). 0 without a pair.
    unsaid: words of the key step that its orc sentence does not say.
    """

    status: str
    number: int
    gold_number: int
    step: Step | None
    gold: Step | None
    obj: float = 0.0
    par: float = 0.0
    decay: float = 0.0
    unsaid: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Explanation:
    """SCORE of one answer: total, {component: value}, the reason of a gate that refused (or ""), the steps."""

    total: float
    components: dict[str, float]
    formula: str
    reason: str
    steps: tuple[ExplainedStep, ...]

    def to_json(self) -> dict[str, Any]:
        """As a sample row keeps it: {"formula", "reason", "steps": [{"status", "text", "gold", "note"}]}, texts cut to
        400 letters and steps to 40 (the gold's missing ones are never cut)."""
        kept = [one for one in self.steps if one.number <= _SHOWN_STEPS]
        return {
            "formula": self.formula,
            "reason": self.reason,
            "steps": [
                {
                    "status": one.status,
                    "text": _text(one.number, one.step),
                    "gold": _text(one.gold_number, one.gold),
                    "note": _cut(_note(one)),
                }
                for one in kept
            ],
        }

    def __str__(self) -> str:
        return explained_text(self.to_json())


def explained_text(explained: Mapping[str, Any]) -> str:
    """`Explanation.to_json()` as lines of plain text; where a step differs, the gold's follows it."""
    lines = [explained["formula"]]
    if explained["reason"]:
        lines.append(f"refused: {explained['reason']}")
    for one in explained["steps"]:
        note = f"  [{one['note']}]" if one["note"] else ""
        lines.append(f"  {one['status']:<11}{one['text'] or one['gold']}{note}")
        if one["status"] == "mismatched":
            lines.append(f"  {'  gold':<11}{one['gold']}")
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)


def explain_batch(
    outputs: Sequence[str],
    golds: Sequence[str],
    config: ScoreConfig = ScoreConfig(),  # noqa: B008
) -> list[Explanation]:
    """The SCORE of B outputs against their golds, explained. The numbers are those of `score_batch`.

    Args:
      outputs, golds, config: as in `score_batch`.

    Raises:
      ValueError: as `score_batch`. No output raises.
    """
    if not outputs:
        return []
    score = score_batch(outputs, golds, config)
    read = [grammar.parse_gold(gold) for gold in golds]
    sketches = [_sketch(text, config) for text in outputs]
    steps = [sketch.steps if sketch else () for sketch in sketches]
    partial = [gold.after for gold in read]
    batches = encoding.encode(
        columns_of(steps),
        columns_of([gold.steps for gold in read]),
        np.arange(len(golds)),
        coverage.canonical_all,
        None if all(after is None for after in partial) else partial,
    )
    explained: list[Explanation | None] = [None] * len(outputs)
    for batch in batches:
        order = None if batch.before is None else (batch.before, batch.partial)
        pairing = kernels.pair_scores(
            batch.predicted, batch.gold, batch.gold_row, options_of(config), config.alignment, order
        ).pairing
        for place, row in enumerate(batch.rows.tolist()):
            own = kernels.Pairing(*(np.asarray(values)[place] for values in pairing))
            found = _steps(sketches[row], read[row].steps, own, config)
            explained[row] = _explanation(score, row, found, config)
    return explained


def _sketch(text: str, config: ScoreConfig) -> Sketch | None:
    """What SCORE reads of an answer."""
    parsed = grammar.parse(
        text,
        strict_numbering=config.strict_numbering,
        allow_outer_text=config.allow_outer_text,
        require_note=config.require_note,
    ).sketch
    return grammar.salvage(text) if parsed is None and not config.use_format_gate else parsed


def _steps(
    sketch: Sketch | None, gold: Sequence[Step], pairing: kernels.Pairing, config: ScoreConfig
) -> tuple[ExplainedStep, ...]:
    found = []
    for place, step in enumerate(sketch.steps if sketch else ()):
        at = int(pairing.partner[place])
        sentence = sketch.orc[place] if place < len(sketch.orc) else ""
        unsaid = tuple(coverage.unsaid(step, sentence))
        if at < 0:
            found.append(ExplainedStep("added", place + 1, 0, step, None, unsaid=unsaid))
            continue
        obj, par, decay = (float(values[place]) for values in pairing[1:])
        status = "matched" if min(obj, par) > 1 - 1e-6 else "mismatched"
        decay = decay if config.use_decay else 1.0
        found.append(ExplainedStep(status, place + 1, at + 1, step, gold[at], obj, par, decay, unsaid))
    paired = {one.gold_number for one in found}
    missing = [
        ExplainedStep("missing", 0, number, None, step) for number, step in enumerate(gold, 1) if number not in paired
    ]
    for one in missing:  # after the step that the gold has before it
        before = [place for place, other in enumerate(found) if 0 < other.gold_number < one.gold_number]
        found.insert(before[-1] + 1 if before else 0, one)
    return tuple(found)


def _explanation(score: Score, row: int, steps: tuple[ExplainedStep, ...], config: ScoreConfig) -> Explanation:
    values = {name: float(getattr(score, name)[row]) for name in COMPONENTS}
    return Explanation(values["total"], values, _formula(values, config), score.reasons[row], steps)


def _formula(values: dict[str, float], config: ScoreConfig) -> str:
    shown = {name: f"{value:.4g}" for name, value in values.items()}
    order, content = f"order {shown['order']}", f"content {shown['content']}"
    if config.combine == "product":
        semantics = f"{order} x {content}" if config.use_order else content
    else:
        semantics = f"({order} + {content})" if config.use_order else content
    scale = f"step scale {shown['step_scale']}"
    inner = f"{scale} x {semantics}" if config.final_combine == "product" else f"({scale} + {semantics})"
    gates = f"format {shown['format_gate']} x consistency {shown['consistency_gate']}"
    return f"SCORE {shown['total']} = {gates} (coverage {shown['coverage']}) x {inner}"


def _text(number: int, step: Step | None) -> str:
    return "" if step is None else _cut(grammar.render_step(number, step))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 1] + "…"


def _note(one: ExplainedStep) -> str:
    """What the step earns, in a few words."""
    notes = []
    if one.gold is not None and one.step is not None:
        if one.status == "mismatched":
            notes.append(f"objects {one.obj:.2g}, parameters {one.par:.2g}")
        if one.decay < 1:
            notes.append(f"step {one.gold_number} of the gold: x {one.decay:.2g}")
    if one.unsaid:
        notes.append(f"not said in its sentence: {', '.join(one.unsaid)}")
    return "; ".join(notes)
