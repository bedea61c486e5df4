"""SciRecipe-Eval's executability metrics, equal to the published evaluator (paper Table 1 and appendix F).

Text is read the evaluator's way, not SCORE's: Unicode line breaks, strip and lower-casing only, lines that are no step
are passed over, the last of repeated JSON keys counts, a string in place of a list is its characters. One difference:
where the evaluator meets a null or a number in place of a text or list it gives the whole answer 0 everywhere; here
that field is read as if it were absent and spoils only its own step.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thoth_jax.evaluation.ordering import matched_tau
from thoth_jax.protocol.columns import columns_of
from thoth_jax.protocol.grammar import Step
from thoth_jax.rewards.score import ScoreConfig, options_of, pair_scores

PUBLISHED = (
    "step_match",
    "order_strict",
    "order_lcs",
    "order_tau",
    "content_score",
    "avg_obj",
    "avg_para",
    "avg_mx",
)
OURS = ("order_subsequence", "order_tau_matched", "content_per_gold")

_CONFIG = ScoreConfig(alignment="greedy_reference", order_mode="lcs")

_LINE = re.compile(r"Step\s+\d+\s*:\s*(?=\{)", re.IGNORECASE)
# A number is never compared, so none is built.
_scan_json = json.JSONDecoder(parse_int=len, parse_float=len).scan_once


class KeyBlock(NamedTuple):
    """A key block as the evaluator reads it: its non-blank lines, and the steps found in them."""

    lines: int
    steps: tuple[Step, ...]


def read_key(text: str) -> KeyBlock:
    """Read a key block, or any text, the evaluator's way. Never raises; linear in the text."""
    lines = [line.rstrip() for line in text.strip().splitlines() if line.strip()]
    return KeyBlock(len(lines), tuple(step for step in map(_step, lines) if step is not None))


def structured_metrics(pred_keys: Sequence[str], gold_keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Metrics of B pairs of key blocks (text between the tags; for an answer without blocks, all of it).

    Returns:
      float32 [B] arrays. Published: step_match (equal numbers of lines), order_strict (equal actions), order_lcs
      (2 LCS / (n + m)), order_tau (on the aligned pairs, which always rise: 1 from two pairs on, else 0), content_score
      (0 to 1.5), avg_obj, avg_para, avg_mx (means over the aligned pairs). Ours beside them: order_subsequence (1 if
      one action list is a subsequence of the other and neither or both are empty), order_tau_matched (Kendall's tau of
      the places of steps that belong together, -1 to 1, see `evaluation.ordering`), content_per_gold (content with
      missed gold steps counted 0).

    Raises:
      ValueError: the lists differ in length.
    """
    if len(pred_keys) != len(gold_keys):
        raise ValueError(f"{len(pred_keys)} predicted keys but {len(gold_keys)} gold keys")
    numbers = {key: number for number, key in enumerate(dict.fromkeys(gold_keys))}
    golds = [read_key(key) for key in numbers]
    gold_of = np.fromiter(map(numbers.__getitem__, gold_keys), np.int64, len(gold_keys))
    predictions = [read_key(key) for key in pred_keys]
    predicted_steps, gold_steps = [block.steps for block in predictions], [block.steps for block in golds]
    scores = pair_scores(columns_of(predicted_steps), columns_of(gold_steps), gold_of, _CONFIG, _canonical)
    lines = np.array([block.lines for block in predictions], np.int64)
    gold_lines = np.array([block.lines for block in golds], np.int64)[gold_of]
    return {
        "step_match": (lines == gold_lines).astype(np.float32),
        "order_strict": scores["exact"],
        "order_lcs": scores["order"],
        "order_tau": (scores["matched"] >= 2).astype(np.float32),
        "content_score": scores["content"],
        "avg_obj": scores["obj"],
        "avg_para": scores["par"],
        "avg_mx": scores["decay"],
        "order_subsequence": scores["subsequence"],
        "order_tau_matched": matched_tau(predicted_steps, gold_steps, gold_of, options_of(_CONFIG), _canonical),
        "content_per_gold": scores["content_per_gold"],
    }


_THINK = re.compile(r"<think>", re.IGNORECASE)
_JUNCTIONS = tuple(
    re.compile(pattern, re.IGNORECASE) for pattern in (r"</think>\s*<key>", r"</key>\s*<orc>", r"</orc>\s*<note>")
)
_NOTE_END = re.compile(r"</note>", re.IGNORECASE)


def evaluator_blocks(text: str) -> tuple[str, str]:
    """(key, orc) as the evaluator finds them: the four blocks anywhere in the text, only white space between them.

    Without them the key is the whole text and the orc "". The evaluator's one pattern takes quadratic time or worse;
    taking the earliest place of each junction in turn finds the same blocks in linear time.
    """
    start = _THINK.search(text)
    at = start.end() if start else None
    bounds = []
    for junction in (*_JUNCTIONS, _NOTE_END):
        found = junction.search(text, at) if at is not None else None
        if found is None:
            return text, ""
        bounds.append(found)
        at = found.end()
    return text[bounds[0].end() : bounds[1].start()], text[bounds[1].end() : bounds[2].start()]


def _step(line: str) -> Step | None:
    header = _LINE.match(line)
    if header is None:
        return None
    try:
        fields, end = _scan_json(line, header.end())
    except (ValueError, StopIteration, RecursionError):
        return None
    if end != len(line) or not fields:
        return None
    action = fields.get("action", "")
    return Step(
        action.strip().lower() if isinstance(action, str) else "",
        _texts(fields.get("objects")),
        _texts(fields.get("parameters")),
    )


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, (list, str, dict)):
        return ()
    return tuple(value.strip().lower() for value in values if isinstance(value, str) and value.strip())


def _canonical(texts: list[str]) -> list[str]:
    return texts
