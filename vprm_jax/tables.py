"""Reports of `vprm verify` and `vprm evaluate` as plain text."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

# Column heads of the metrics.
_HEADS = {
    "accuracy": "acc",
    "macro_f1": "macroF1",
    "coherence": "coher",
    "ca_joint": "CAjoint",
    "ca_conditional": "CAcond",
    "right_answer_wrong_steps": "lucky",
    "step_names": "names",
    "step_labels": "labels",
    "parse_rate": "parsed",
    "format_rate": "format",
    "gold_coherence": "goldCoh",
}
_LEGEND = "lucky: right verdict with wrong steps; goldCoh: coherence of the gold steps with the gold verdicts"


def traces_table(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """A line for each trace, then the shares of all."""
    lines = [f"{'id':<20} {'domain':<8}{'implied':<9}{'stated':<9}{'coherent':<9} where they part"]
    for row in rows:
        parts = row["parts"]
        if row["gold_parts"]:
            parts += f"{'; ' if parts else ''}from gold: {row['gold_parts']}"
        lines.append(
            f"{_cut(row['id'], 20):<20} {_cut(row['domain'], 7):<8}{row['implied'] or '-':<9}{row['stated'] or '-':<9}"
            f"{'yes' if row['coherent'] else 'no':<9} {printable(parts)}".rstrip()
        )
    names = ("coherence", "parsed", "format", "accuracy")
    shares = [f"{name} {summary[name]:.4f}" for name in names if summary[name] is not None]
    lines.append(f"{summary['count']} traces of {summary['tool']}: {', '.join(shares)}")
    return "\n".join(lines + _closing(summary))


def metrics_table(summary: Mapping[str, Any]) -> str:
    """Values by group, the overall ones with their intervals, and the differences from another run."""
    lines = [f"{summary['count']} answers, {summary['clusters']} clusters by {summary['cluster']}"]
    groups = {f"overall ({', '.join(summary['by_tool'])})": summary["overall"]}
    for field, word in (("by_tool", "tool "), ("by_domain", ""), ("by_provenance", "verdicts ")):
        if len(summary[field]) > 1:
            groups |= {f"{word}{name}": found for name, found in summary[field].items()}
    lines.append(" " * 20 + "".join(f"{head:>8}" for head in _HEADS.values()))
    for name, found in groups.items():
        lines.append(f"{_cut(name, 19):<20}" + "".join(f"{_number(found[metric][0]):>8}" for metric in _HEADS))
    lines += [_LEGEND, "95 % intervals, overall"]
    for metric in _HEADS:
        value, low, high = summary["overall"][metric]
        lines.append(f"  {metric:<26}{_number(value):>8}  [{_number(low)}, {_number(high)}]")
    if "difference" in summary:
        lines.append("difference from the other run (paired)")
        for metric in _HEADS:
            value, low, high, p = summary["difference"][metric]
            lines.append(f"  {metric:<26}{_number(value):>8}  [{_number(low)}, {_number(high)}]  p {_number(p)}")
    return "\n".join(lines + _closing(summary))


def printable(text: str) -> str:
    """The text with a question mark for what a terminal must not get."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def _closing(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    for part, word in (("risk", "verdicts"), ("steps", "steps")):
        if counts := summary["provenance"][part]:
            lines.append(f"gold {word}: " + ", ".join(f"{count} {who}" for who, count in counts.items()))
    lines += [f"  {_cut(reason, 40):<40}{count:8d}" for reason, count in summary["problems"].items()]
    for message in summary["bad"]:
        lines += textwrap.wrap(f"skipped: {printable(message)}", 100, subsequent_indent="  ")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "~"
