"""Files of predictions against files of golds: the bodies of `thoth score` and `thoth evaluate`.

Gold rows are item rows of any format (`protocol.schema`); prediction rows are {"id", "output"}.
"""

import collections
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from thoth_jax.errors import InputError
from thoth_jax.evaluation.lexical import averages, lexical_metrics
from thoth_jax.evaluation.structured import evaluator_blocks, read_key, structured_metrics
from thoth_jax.protocol import grammar
from thoth_jax.protocol.schema import ProtocolItem, read_items, read_rows, row_id
from thoth_jax.rewards.explain import explain_batch, explained_text
from thoth_jax.rewards.score import COMPONENTS, ScoreConfig, score_batch

Report = tuple[list[dict[str, Any]], dict[str, Any]]


def score_file(gold, input=None, config: ScoreConfig | None = None, skip_bad: bool = False, explain: int = 0) -> Report:
    """SCORE of a file of predictions.

    Without `input` every gold answer is scored against itself. A gold row without a full answer (SciRecipe-Eval rows
    have only key and orc) gets the four blocks that the format asks for, with an empty think block and the word "None"
    as its note; both gates read its own key and orc, so a gold that contradicts itself shows.

    Args:
      gold: path of item rows.
      input: path of prediction rows, or None.
      config: default `ScoreConfig()`.
      skip_bad: bad rows of either file, and ids that only one of them has, are left out and listed under "bad".
      explain: so many of the first answers are explained (see `rewards.explain`).

    Returns:
      rows {"id", "total", the other components, "reason"} and a summary {"count", "mean": {component: mean},
      "reasons": {reason without its position: count}, "bad": [message]}, with `explain` also "explained":
      [{"id", "formula", "reason", "steps"}].

    Raises:
      InputError: unreadable rows; a gold without a key; duplicate ids; ids that the two files do not share.
    """
    items, outputs, bad = _pairs(gold, input, skip_bad, _answer, grammar.parse_key_block)
    config = config or ScoreConfig()
    score = score_batch(outputs, [item.key for item in items], config)
    rows = [
        {"id": item.id}
        | {name: _number(getattr(score, name)[index]) for name in COMPONENTS}
        | {"reason": score.reasons[index]}
        for index, item in enumerate(items)
    ]
    refused = collections.Counter(reason.split(":")[0] for reason in score.reasons if reason)
    summary = {
        "count": len(rows),
        "mean": _means(rows, COMPONENTS),
        "reasons": dict(refused.most_common()),
        "bad": bad,
    }
    if explain:
        chosen = items[:explain]
        found = explain_batch(outputs[:explain], [item.key for item in chosen], config)
        summary["explained"] = [{"id": item.id} | one.to_json() for item, one in zip(chosen, found, strict=True)]
    return rows, summary


def evaluate_file(gold, input=None, skip_bad: bool = False, lexical: bool = False) -> Report:
    """SciRecipe-Eval's executability metrics of a file of predictions, and with `lexical` those of its orc text.

    The key block of an output is found as the published evaluator finds it (`structured.evaluator_blocks`). Without
    `input` each gold key block is evaluated against itself.

    Args:
      gold, input, skip_bad: as in `score_file`.

    Returns:
      rows {"id", "type", "level", metrics...} and a summary {"count", "overall": {metric: mean}, "by_level": {level:
      {metric: mean}}, "by_type": {...}, "bad": [message]}; with `lexical` also "missing": {metric family: why} and,
      where no column is missing, the paper's averages avg_9 and avg_8 beside the means.

    Raises:
      InputError: as `score_file`.
    """
    items, outputs, bad = _pairs(gold, input, skip_bad, lambda item: item.key, _lenient_steps)
    if input is None:
        predicted, sentences = outputs, [item.orc for item in items]
    else:
        predicted, sentences = zip(*map(evaluator_blocks, outputs), strict=True)
    metrics = structured_metrics(predicted, [item.key for item in items])
    missing: dict[str, str] = {}
    if lexical:
        words, missing = lexical_metrics(sentences, [item.orc for item in items])
        metrics |= words
    names = tuple(metrics)

    def means_of(chosen) -> dict[str, float]:
        means = _means(chosen, names)
        return means | {name: _number(value) for name, value in averages(means).items()} if lexical else means

    rows = [
        {"id": item.id, "type": item.type, "level": item.level}
        | {name: _number(metrics[name][index]) for name in names}
        for index, item in enumerate(items)
    ]
    summary: dict[str, Any] = {"count": len(rows), "overall": means_of(rows)}
    for field in ("level", "type"):
        groups: dict[str, list] = {}
        for row in rows:
            groups.setdefault(row[field], []).append(row)
        summary[f"by_{field}"] = {value: means_of(groups[value]) for value in sorted(groups)}
    return rows, summary | ({"missing": missing} if lexical else {}) | {"bad": bad}


def write_jsonl(path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    epath.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def table(summary: Mapping[str, Any]) -> str:
    """A summary of `score_file` or `evaluate_file` as plain text, at most 100 columns wide (but explained steps)."""
    lines = [f"{summary['count']} answers"]
    if "mean" in summary:
        lines += [f"  {name:<18}{value:8.4f}" for name, value in summary["mean"].items()]
        if summary["reasons"]:
            lines.append("refused")
            lines += [f"  {_cut(reason, 40):<40}{count:8d}" for reason, count in summary["reasons"].items()]
    else:
        groups = {"overall": summary["overall"]}
        for field in ("level", "type"):
            groups |= {f"{field} {value}": means for value, means in summary[f"by_{field}"].items()}
        lines += _metric_table(groups, _HEADS)
        words = {name: head for name, head in _WORD_HEADS.items() if name in summary["overall"]}
        averaged = {name: head for name, head in _AVERAGE_HEADS.items() if name in summary["overall"]}
        for heads in (words, averaged):
            lines += _metric_table(groups, heads) if heads else []
        lines += [f"missing: {family}: {why}" for family, why in summary.get("missing", {}).items()]
    for explained in summary.get("explained", ()):
        lines += ["", _cut(explained["id"], 100), explained_text(explained)]
    for message in summary["bad"]:
        lines += textwrap.wrap(f"skipped: {_printable(message)}", 100, subsequent_indent="  ")
    return "\n".join(lines)


# Column heads of the metrics table: the paper's names where it has them.
_HEADS = {
    "content_score": "Sem-A",
    "order_lcs": "O-LCS",
    "order_strict": "O-S",
    "order_tau": "O-Tau",
    "step_match": "Step-M",
    "avg_obj": "obj",
    "avg_para": "par",
    "avg_mx": "m_ij",
    "order_subsequence": "O-Sub",
    "order_tau_matched": "O-TauM",
    "content_per_gold": "Sem-G",
}


_WORD_HEADS = {
    "bleu_1": "BLEU1",
    "bleu_2": "BLEU2",
    "bleu_3": "BLEU3",
    "bleu_4": "BLEU4",
    "bleu_avg": "BLEU",
    "rouge_1": "R-1",
    "rouge_2": "R-2",
    "rouge_l": "R-L",
    "meteor": "METEOR",
    "kw_f1": "KW-F1",
    "bertscore_f1": "BERT",
}
_AVERAGE_HEADS = {"avg_9": "AVG-9", "avg_8": "AVG-8"}


def _metric_table(groups: Mapping[str, Mapping[str, float]], heads: Mapping[str, str]) -> list[str]:
    lines = [" " * 22 + "".join(f"{head:>7}" for head in heads.values())]
    for name, means in groups.items():
        lines.append(
            f"{_cut(name, 21):<22}"
            + "".join(f"{means[metric]:7.{4 if means[metric] >= 0 else 3}f}" for metric in heads)
        )
    return lines


def _cut(text: str, width: int) -> str:
    text = _printable(text)
    return text if len(text) <= width else text[: width - 1] + "~"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _pairs(gold, input, skip_bad: bool, own, read_steps) -> tuple[list[ProtocolItem], list[str], list[str]]:
    """Golds and outputs in the golds' order, and the messages of skipped rows.

    `own` gives a gold's own answer; `read_steps` raises ValueError on a key block that cannot serve as gold.
    """
    read, bad = read_items(gold, skip_bad)
    bad = list(bad)

    def refuse(message: str) -> None:
        if not skip_bad:
            raise InputError(message)
        bad.append(message)

    items: dict[str, ProtocolItem] = {}
    for item in read:
        if item.id in items:
            refuse(f"{item.where}: field 'id': {item.id!r} is also the id of {items[item.id].where}")
            continue
        try:
            read_steps(item.key)
        except ValueError as error:
            field = "key" if not item.verbatim else "answer"
            refuse(f"{item.where}: field {field!r} has no key block of lines 'Step n: {{json}}' ({error})")
            continue
        items[item.id] = item
    if input is None:
        outputs = {name: own(item) for name, item in items.items()}
    else:
        outputs = _read_predictions(input, skip_bad, refuse)
        for name, item in items.items():
            if name not in outputs:
                refuse(f"{input}: no prediction for the id {name!r} of {item.where}")
        for name in outputs:
            if name not in items:
                refuse(f"{input}: field 'id': {name!r} is the id of no usable row of {gold}")
    shared = [item for name, item in items.items() if name in outputs]
    if not shared:
        raise InputError(f"{gold}: no usable gold row" + ("" if input is None else f" with a prediction in {input}"))
    return shared, [outputs[item.id] for item in shared], bad


def _lenient_steps(key: str) -> None:
    if not read_key(key).steps:
        raise ValueError("no step was found")


def _read_predictions(path, skip_bad: bool, refuse) -> dict[str, str]:
    rows, malformed = read_rows(path, skip_bad)
    for message in malformed:
        refuse(message)
    outputs: dict[str, str] = {}
    for row in rows:
        output = row.data.get("output")
        if "id" not in row.data or "output" not in row.data:
            missing = "id" if "id" not in row.data else "output"
            refuse(f"{path}:{row.line}: no field {missing!r}; a prediction row is {{id, output}}")
            continue
        try:
            name = row_id(row, f"{path}:{row.line}")
        except InputError as error:
            refuse(str(error))
            continue
        if not isinstance(output, str):
            refuse(f"{path}:{row.line}: field 'output' must be a text")
        elif name in outputs:
            refuse(f"{path}:{row.line}: field 'id': {name!r} occurs twice")
        else:
            outputs[name] = output
    return outputs


def _answer(item: ProtocolItem) -> str:
    return item.answer or grammar.join_blocks("", item.key, item.orc, "None")


def _number(value: Any) -> float:
    return round(float(value), 7)


def _means(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    return {name: _number(np.mean([row[name] for row in rows])) for name in names}
