"""Files of traces and of golds: the bodies of `vprm verify` and `vprm evaluate`.

Trace rows are {"id", "domain", "text"}, with gold_steps and gold_risk where they are known. Gold rows are {"id",
"tool", "domain", "gold_risk"}, with gold_steps where they are known; answer rows are {"id", "output"}. Any row may say
whose its gold labels are: "provenance": human, silver or synthetic, or {"risk": ..., "steps": ...}.
"""

import collections
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from thoth_jax.errors import InputError, nearest
from thoth_jax.protocol.schema import Row, read_rows, row_id
from vprm_jax import metrics, tools
from vprm_jax.metrics import PROVENANCES, Gold
from vprm_jax.trace import TraceFormat

Report = tuple[list[dict[str, Any]], dict[str, Any]]

CLUSTER = "family"  # the field of rows whose wording is not independent


class _Formats:
    """The tools that rows name and the trace formats of their domains, each made once."""

    def __init__(self):
        self._tools: dict[str, tools.Tool] = {}
        self._made: dict[tuple[str, str], TraceFormat] = {}

    def tool(self, name: str) -> tools.Tool:
        if name not in self._tools:
            self._tools[name] = tools.load(name)
        return self._tools[name]

    def of(self, tool: str, domain: str) -> TraceFormat:
        if (tool, domain) not in self._made:
            self._made[tool, domain] = TraceFormat(self.tool(tool), domain)
        return self._made[tool, domain]


def verify_file(path, tool: str, skip_bad: bool = False) -> Report:
    """Check each trace of a file against the rules of its domain, and against its gold labels where it has them.

    Args:
      path: of trace rows. A row may name its tool, which must be this one.
      tool: name of a tool.
      skip_bad: bad rows are left out and listed under "bad".

    Returns:
      rows {"id", "tool", "domain", "stated", "implied", "coherent", "parts", "gold", "gold_parts", "format_ok",
      "steps", "problems", "provenance"}: `parts` says where stated and implied verdict part, `gold_parts` where the
      trace first parts from gold ("" where it does not or there is no gold). A summary {"tool", "count", "parsed",
      "coherence", "accuracy" (None without gold), "format", "problems": {reason code: traces}, "provenance", "bad"}.

    Raises:
      InputError: no such tool; unreadable rows.
    """
    formats = _Formats()
    formats.tool(tool)

    def of(row: Row, where: str) -> dict[str, Any]:
        form = _format(row.data, where, formats, tool)
        text = row.data.get("text")
        if not isinstance(text, str):
            raise InputError(f"{where}: field 'text' must be a text; a trace row is {{id, domain, text}}")
        return _verified(form, text, row_id(row, where), *_gold_labels(row.data, where, form, False))

    rows, bad = _converted(path, skip_bad, of)
    problems = collections.Counter(
        code for row in rows for code in {problem.partition(":")[0] for problem in row["problems"]}
    )
    judged = [row["stated"] == row["gold"] for row in rows if row["gold"] is not None]
    return rows, {
        "tool": formats.tool(tool).name,
        "count": len(rows),
        "parsed": _share(row["stated"] is not None for row in rows),
        "format": _share(row["format_ok"] for row in rows),
        "coherence": _share(row["coherent"] for row in rows),
        "accuracy": _share(judged),
        "problems": dict(problems.most_common()),
        "provenance": metrics.provenance_counts(row["provenance"] for row in rows),
        "bad": bad,
    }


def _verified(form: TraceFormat, text: str, name: str, risk, steps, provenance) -> dict[str, Any]:
    trace = form.parse(text)
    found = form.verify(trace)
    parts = ""
    if steps is not None and (wrong := metrics.first_wrong_step(form, trace, steps)) is not None:
        parts = f"{wrong} = {dict(trace.steps).get(wrong)}, gold {steps[wrong]}"
    elif risk is not None and trace.verdict != risk:
        parts = f"risk = {trace.verdict}, gold {risk}"
    return {
        "id": name,
        "tool": form.tool.name,
        "domain": form.domain.letter,
        "stated": trace.verdict,
        "implied": found.implied,
        "coherent": found.coherent,
        "parts": found.parts,
        "gold": risk,
        "gold_parts": parts,
        "format_ok": trace.format_ok,
        "steps": dict(trace.steps),
        "problems": trace.problems,
        "provenance": provenance,
    }


def evaluate_file(
    gold,
    answers=None,
    against=None,
    *,
    tool: str | None = None,
    cluster: str | None = None,
    skip_bad: bool = False,
    samples: int = 2000,
    seed: int = 0,
) -> Report:
    """Metrics of a file of answers, and their differences from another run's answers to the same golds.

    Args:
      gold: path of gold rows.
      answers: path of answer rows; None: the golds' own steps and verdicts are judged, which shows labels that
        contradict each other.
      against: path of another run's answer rows.
      tool: of rows that do not name theirs.
      cluster: field that rows which are not independent share; default: family where every row has it, else id.
      skip_bad: bad rows, and ids that not all files have, are left out and listed under "bad".
      samples, seed: of the bootstrap.

    Returns:
      rows of `metrics.judge`, and the summary of `metrics.report` with "cluster" (the field), "bad", and with
      `against` also "difference" of `metrics.compare`.

    Raises:
      InputError: unreadable rows; a gold without verdict; duplicate ids; ids that the files do not share.
    """
    if samples < 1 or seed < 0:
        raise InputError(f"samples {samples}, seed {seed}: expected 1 or more, and 0 or more")
    formats = _Formats()
    found, bad = _converted(gold, skip_bad, lambda row, where: (where, row.data, *_gold(row, where, formats, tool)))

    def refuse(message: str) -> None:
        if not skip_bad:
            raise InputError(message)
        bad.append(message)

    golds: dict[str, tuple[TraceFormat, Gold, Mapping]] = {}
    lines: dict[str, str] = {}
    for where, data, form, item in found:
        if item.id in golds:
            refuse(f"{where}: field 'id': {item.id!r} is also the id of {lines[item.id]}")
        elif answers is None and item.steps is None:
            refuse(f"{where}: no field 'gold_steps'; without answers the gold steps are judged")
        else:
            golds[item.id], lines[item.id] = (form, item, data), where
    files = [path for path in (answers, against) if path is not None]
    outputs = [_answers(path, skip_bad, refuse) for path in files]
    for path, own in zip(files, outputs, strict=True):
        for name in golds:
            if name not in own:
                refuse(f"{path}: no answer to the id {name!r} of {lines[name]}")
        for name in own:
            if name not in lines:
                refuse(f"{path}: field 'id': {name!r} is the id of no usable row of {gold}")
    shared = [name for name in golds if all(name in own for own in outputs)]
    if not shared:
        raise InputError(f"{gold}: no usable gold row" + (f" with an answer in {' and '.join(files)}" if files else ""))
    field, items = _clustered(cluster, [(lines[name], *golds[name]) for name in shared])
    if answers is None:
        outputs.insert(0, {item.id: form.render(item.steps, item.risk) for form, item in items})
    judged = [[metrics.judge(form, own[item.id], item) for form, item in items] for own in outputs]
    summary = metrics.report(judged[0], samples=samples, seed=seed) | {"cluster": field}
    if against is not None:
        summary["difference"] = metrics.compare(judged[0], judged[1], samples=samples, seed=seed)
    return judged[0], summary | {"bad": bad}


def write_jsonl(path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    epath.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _converted(path, skip_bad: bool, convert: Callable[[Row, str], Any]) -> tuple[list, list[str]]:
    read, malformed = read_rows(path, skip_bad)
    rows, bad = [], list(malformed)
    for row in read:
        try:
            rows.append(convert(row, f"{path}:{row.line}"))
        except InputError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
    if not rows:
        raise InputError(f"{path}: no usable row")
    return rows, bad


def _format(data: Mapping[str, Any], where: str, formats: _Formats, tool: str | None) -> TraceFormat:
    named = data.get("tool", tool)
    if not isinstance(named, str):
        raise InputError(f"{where}: field 'tool' must name a tool, or all rows get one with --tool")
    if tool is not None and named != tool:
        if named != formats.tool(tool).name:
            raise InputError(f"{where}: field 'tool': the row is for {named!r}, not for {tool!r}")
        named = tool  # a path, of which rows give the name
    domain = data.get("domain")
    if not isinstance(domain, str):
        raise InputError(f"{where}: field 'domain' must be the letter of a domain")
    try:
        return formats.of(named, domain)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _gold_labels(data: Mapping[str, Any], where: str, form: TraceFormat, needed: bool):
    """Verdict, steps and provenance of a row; (None, None, {}) where it has no gold."""
    risk, steps = data.get("gold_risk"), data.get("gold_steps")
    if risk is None and needed:
        raise InputError(f"{where}: no field 'gold_risk'")
    try:
        if risk is not None:
            if not isinstance(risk, str):
                raise InputError("field 'gold_risk' must be a verdict")
            risk = form.verdict(risk)
        if steps is not None:
            steps = form.labels(_pairs(steps))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    who = _provenance(data, where)
    return risk, steps, {part: who[part] for part, labels in (("risk", risk), ("steps", steps)) if labels is not None}


def _pairs(steps: Any) -> list[tuple[str, str]]:
    pairs = list(steps.items()) if isinstance(steps, dict) else steps
    if isinstance(pairs, list) and pairs and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        if all(isinstance(word, str) for pair in pairs for word in pair):
            return [(name, label) for name, label in pairs]
    raise InputError("field 'gold_steps' must be pairs [step, label] or an object {step: label}, at least one")


def _provenance(data: Mapping[str, Any], where: str) -> dict[str, str]:
    given = data.get("provenance", "unknown")
    parts = given if isinstance(given, dict) else {"risk": given, "steps": given}
    for part, who in parts.items():
        if part not in ("risk", "steps"):
            raise InputError(f"{where}: field 'provenance': no part {part!r}; valid: risk, steps")
        if who not in PROVENANCES:
            raise InputError(f"{where}: field 'provenance': {who!r}{nearest(str(who), PROVENANCES)}")
    return {"risk": "unknown", "steps": "unknown"} | parts


def _gold(row: Row, where: str, formats: _Formats, tool: str | None) -> tuple[TraceFormat, Gold]:
    form = _format(row.data, where, formats, tool)
    risk, steps, provenance = _gold_labels(row.data, where, form, True)
    name = row_id(row, where)
    return form, Gold(name, form.tool.name, form.domain.letter, risk, steps, name, provenance)


def _clustered(field: str | None, items: Sequence[tuple[str, TraceFormat, Gold, Mapping]]):
    """The field that was taken, and the golds with its values as their clusters."""
    if field is None:
        field = CLUSTER if all(CLUSTER in data for *_, data in items) else "id"
    clustered = []
    for where, form, gold, data in items:
        value = gold.id if field == "id" else data.get(field)
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise InputError(f"{where}: field {field!r}, of the clusters, must be a text or a whole number")
        clustered.append((form, gold._replace(cluster=str(value))))
    return field, clustered


def _answers(path, skip_bad: bool, refuse: Callable[[str], None]) -> dict[str, str]:
    def of(row: Row, where: str) -> tuple[str, str, str]:
        if "id" not in row.data or not isinstance(row.data.get("output"), str):
            raise InputError(f"{where}: expected an answer row {{id, output}} with a text as output")
        return where, row_id(row, where), row.data["output"]

    rows, bad = _converted(path, skip_bad, of)
    for message in bad:
        refuse(message)
    outputs: dict[str, str] = {}
    for where, name, output in rows:
        if name in outputs:
            refuse(f"{where}: field 'id': {name!r} occurs twice")
        else:
            outputs[name] = output
    return outputs


def _share(flags: Iterable[bool]) -> float | None:
    flags = list(flags)
    return round(sum(flags) / len(flags), 7) if flags else None
