"""Metrics of risk-of-bias answers: accuracy, macro-F1, coherence, and what joins them.

C_i is 1 where the stated verdict is the one that the trace's own labels imply, and coherence is its mean. The paper
(arXiv 2601.17223) gives two readings of coherent accuracy, which differ unless all traces are coherent: its formula is
the share of all answers that are coherent and right (`ca_joint`), its prose the share of the coherent ones that are
right (`ca_conditional`). An answer that cannot be read is wrong and incoherent.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vprm_jax.trace import Trace, TraceFormat, implied, path

# Who gave a label: reviewers, a model, the generator of a synthetic report, or the file does not say.
PROVENANCES = ("human", "silver", "synthetic", "unknown")

METRICS = (
    "accuracy",
    "macro_f1",
    "parse_rate",
    "format_rate",
    "coherence",
    "ca_joint",
    "ca_conditional",
    "right_answer_wrong_steps",
    "step_names",
    "step_labels",
    "gold_coherence",
)

_COUNTS = (
    "rows",
    "right",
    "parsed",
    "format_ok",
    "coherent",
    "joint",
    "with_steps",
    "right_answer_wrong_steps",
    "step_names",
    "step_labels",
    "gold_coherent",
)


class Gold(NamedTuple):
    """What an answer is compared with.

    risk:       the verdict.
    steps:      step name -> label in the domain's order, or None: the row has only a verdict.
    cluster:    rows that are not independent share it (a report, a template family).
    provenance: {"risk": one of PROVENANCES, "steps": one of them}.
    """

    id: str
    tool: str
    domain: str
    risk: str
    steps: Mapping[str, str] | None
    cluster: str
    provenance: Mapping[str, str]


def judge(form: TraceFormat, text: str, gold: Gold) -> dict[str, Any]:
    """One answer beside its gold; the metrics are means and ratios of these rows.

    step_names is the share of the gold steps that the trace names in their order, step_labels the share that it also
    labels rightly (see `matched_steps`). steps_right looks only at the gold steps up to the one that settles the
    verdict, so that a trace may stop there. All three, and gold_coherent, are None without gold steps.
    """
    trace = form.parse(text)
    found = form.verify(trace)
    right = trace.verdict == gold.risk
    row = {
        "id": gold.id,
        "tool": gold.tool,
        "domain": gold.domain,
        "cluster": gold.cluster,
        "provenance": dict(gold.provenance),
        "gold": gold.risk,
        "stated": trace.verdict,
        "implied": found.implied,
        "coherent": found.coherent,
        "parts": found.parts,
        "right": right,
        "parsed": trace.parsed,
        "format_ok": trace.format_ok,
        "step_names": None,
        "step_labels": None,
        "steps_right": None,
        "gold_coherent": None,
        "problems": list(trace.problems),
    }
    if gold.steps is not None:
        names, labels = matched_steps(trace.steps, tuple(gold.steps.items()))
        row["step_names"], row["step_labels"] = names / len(gold.steps), labels / len(gold.steps)
        row["steps_right"] = first_wrong_step(form, trace, gold.steps) is None
        row["gold_coherent"] = implied(form.domain, gold.steps) == gold.risk
    return row


def matched_steps(steps: Sequence[tuple[str, str | None]], gold: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """How many gold steps a trace names in their order, and how many of those it labels as gold does.

    Both lists are aligned as a longest common subsequence of names, of several the one with the most right labels: a
    step that is left out, put in or moved costs itself and not those behind it.
    """
    best = [(0, 0)] * (len(gold) + 1)
    for name, label in steps:
        row = [(0, 0)]
        for at, (gold_name, gold_label) in enumerate(gold):
            found = max(best[at + 1], row[at])
            if name == gold_name:
                names, labels = best[at]
                found = max(found, (names + 1, labels + (label == gold_label)))
            row.append(found)
        best = row
    return best[-1]


def first_wrong_step(form: TraceFormat, trace: Trace, gold: Mapping[str, str]) -> str | None:
    """The first gold step, up to the one that settles the verdict, that the trace does not label as gold does."""
    said = dict(trace.steps)
    return next((name for name, label in path(form.domain, gold).items() if said.get(name) != label), None)


def check_bound(coherence: float, accuracy: float, ca_joint: float) -> None:
    """max(0, coherence + accuracy - 1) <= ca_joint <= min(coherence, accuracy), true of any shares of the same rows.

    Raises:
      ValueError: the numbers cannot come from the same rows.
    """
    low, high = max(0.0, coherence + accuracy - 1), min(coherence, accuracy)
    if not low - 1e-9 <= ca_joint <= high + 1e-9:
        raise ValueError(
            f"ca_joint {ca_joint:.4f} is outside of [{low:.4f}, {high:.4f}], which coherence {coherence:.4f} and "
            f"accuracy {accuracy:.4f} of the same answers leave"
        )


def report(rows: Sequence[Mapping[str, Any]], *, samples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """The metrics of rows of `judge`, each as [value, low, high] with a 95 % bootstrap interval over clusters.

    A metric that nothing defines (ca_conditional where no trace is coherent, step metrics without gold steps) is three
    times None; the bounds are None where there is one cluster.

    Returns:
      {"count", "clusters", "provenance": {"risk": {who: count}, "steps": {...}}, "overall": {metric: triple},
      "by_tool": {tool: {...}}, "by_domain": {"tool letter": {...}}, "by_provenance": {who gave the verdict: {...}},
      "problems": {reason code: answers that have it}}.

    Raises:
      ValueError: no rows.
    """
    groups: dict[str, dict[str, list]] = {"by_tool": {}, "by_domain": {}, "by_provenance": {}}
    for row in rows:
        groups["by_tool"].setdefault(row["tool"], []).append(row)
        groups["by_domain"].setdefault(f"{row['tool']} {row['domain']}", []).append(row)
        groups["by_provenance"].setdefault(row["provenance"]["risk"], []).append(row)
    problems = collections.Counter(
        code for row in rows for code in {problem.partition(":")[0] for problem in row["problems"]}
    )
    return {
        "count": len(rows),
        "clusters": len({row["cluster"] for row in rows}),
        "provenance": provenance_counts(row["provenance"] for row in rows),
        "overall": _metrics(rows, samples, seed),
        **{
            field: {name: _metrics(own, samples, seed) for name, own in sorted(found.items())}
            for field, found in groups.items()
        },
        "problems": dict(problems.most_common()),
    }


def compare(
    rows: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]], *, samples: int = 2000, seed: int = 0
) -> dict[str, list[float | None]]:
    """The metrics of rows minus those of another run on the same golds, as [difference, low, high, p].

    Both runs are drawn together, cluster by cluster; p is that of `intervals.paired_statistic`. A metric that one of
    the runs leaves undefined is four times None.

    Args:
      rows, baseline: of `judge`, the same ids in any order.

    Raises:
      ValueError: no rows; ids, golds or clusters that differ between the runs.
    """
    from thoth_jax.evaluation.intervals import (
        paired_statistics,
    )  # the room imports jax, which `judge` need not wait for

    others = {row["id"]: row for row in baseline}
    if len(others) != len(rows) or len(baseline) != len(rows):
        raise ValueError(f"{len(rows)} answers but {len(baseline)} of the baseline: expected the same ids, each once")
    paired = []
    for row in rows:
        other = others.get(row["id"])
        if other is None or any(row[field] != other[field] for field in ("tool", "domain", "gold", "cluster")):
            raise ValueError(f"the runs differ in the gold of {row['id']!r}")
        paired.append(other)
    classes = _classes([*rows, *paired])
    found = paired_statistics(
        _statistics,
        _columns(rows, classes),
        _columns(paired, classes),
        [row["cluster"] for row in rows],
        samples=samples,
        seed=seed,
    )
    return {name: [_value(number) for number in difference] for name, difference in zip(METRICS, found, strict=True)}


def provenance_counts(provenances: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """How many verdicts and how many step labels are whose; rows without gold steps have none of "steps"."""
    counts: dict[str, collections.Counter] = {"risk": collections.Counter(), "steps": collections.Counter()}
    for provenance in provenances:
        for part, who in provenance.items():
            counts[part][who] += 1
    return {part: dict(sorted(found.items())) for part, found in counts.items()}


def _metrics(rows: Sequence[Mapping[str, Any]], samples: int, seed: int) -> dict[str, list[float | None]]:
    from thoth_jax.evaluation.intervals import bootstrap_statistics  # see `compare`

    columns = _columns(rows, _classes(rows))
    found = bootstrap_statistics(_statistics, columns, [row["cluster"] for row in rows], samples=samples, seed=seed)
    triples = {name: [_value(number) for number in interval] for name, interval in zip(METRICS, found, strict=True)}
    check_bound(*(triples[name][0] for name in ("coherence", "accuracy", "ca_joint")))
    return triples


def _value(number: float) -> float | None:
    return None if np.isnan(number) else round(float(number), 7)


def _classes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = {row["gold"] for row in rows} | {row["stated"] for row in rows}
    return sorted(found - {None})


def _columns(rows: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> np.ndarray:
    """[N, M]: `_COUNTS`, then for each class whether the answer is a hit, how often it is predicted, and gold."""
    counts = [
        (
            1,
            row["right"],
            row["parsed"],
            row["format_ok"],
            row["coherent"],
            row["coherent"] and row["right"],
            row["steps_right"] is not None,
            row["steps_right"] is False and row["right"],
            row["step_names"] or 0,
            row["step_labels"] or 0,
            row["gold_coherent"] or 0,
        )
        for row in rows
    ]
    number = {verdict: at for at, verdict in enumerate(classes)}
    gold = np.array([number[row["gold"]] for row in rows])
    stated = np.array([number.get(row["stated"], -1) for row in rows])
    is_gold, is_stated = (each[:, None] == np.arange(len(classes)) for each in (gold, stated))
    return np.concatenate([np.array(counts, np.float64), is_gold & is_stated, is_stated, is_gold], axis=1)


def _statistics(sums: np.ndarray) -> np.ndarray:
    """Sums of the columns [S, M] -> METRICS [S, Q]."""
    of = {name: sums[:, at] for at, name in enumerate(_COUNTS)}
    hits, stated, gold = np.split(sums[:, len(_COUNTS) :], 3, axis=1)
    present = (stated + gold) > 0
    # A class that is neither gold nor predicted in a draw has no F1 and is left out of its mean.
    f1 = np.where(present, 2 * hits / np.where(present, stated + gold, 1), 0).sum(1) / present.sum(1)
    shares = {
        "accuracy": of["right"] / of["rows"],
        "macro_f1": f1,
        "parse_rate": of["parsed"] / of["rows"],
        "format_rate": of["format_ok"] / of["rows"],
        "coherence": of["coherent"] / of["rows"],
        "ca_joint": of["joint"] / of["rows"],
        "ca_conditional": of["joint"] / of["coherent"],
        "right_answer_wrong_steps": of["right_answer_wrong_steps"] / of["with_steps"],
        "step_names": of["step_names"] / of["with_steps"],
        "step_labels": of["step_labels"] / of["with_steps"],
        "gold_coherence": of["gold_coherent"] / of["with_steps"],
    }
    return np.stack([shares[name] for name in METRICS], axis=1)
