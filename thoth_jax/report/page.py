"""The page: results, curves by stage, sample answers. All text of a run is hostile here: escaped, cut, made visible."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from thoth_jax.report.charts import Series, chart, number
from thoth_jax.report.runs import RunFiles, Runs, Table
from thoth_jax.report.style import CSS

# No script, no network, whatever a text of a run tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SHOWN = 6  # sample answers of a run
_LONGEST = 4000  # letters of an answer
_STATUSES = ("matched", "mismatched", "added", "missing")

# (title, metrics in one chart, logarithmic), in the order of the page; {parts} stands for the parts of the reward.
_CHARTS = (
    ("Loss", ("loss",), False),
    ("Reward", ("rewards/mean",), False),
    ("Score of the task", ("score",), False),
    ("{parts}", (), False),
    ("KL to the reference", ("kl",), False),
    ("Answer length, tokens", ("completions/mean_length", "completions/max_length"), False),
    ("|Δ log p| between sampler and trainer", ("logp_diff/mean", "logp_diff/max"), True),
    ("Cut off answers", ("completions/truncated_frac",), False),
    ("Policy loss", ("loss/policy",), False),
    ("Entropy", ("entropy",), False),
    ("Groups whose rewards are all equal", ("groups/zero_std_frac",), False),
    ("Clipped tokens", ("pg_clipfrac/low", "pg_clipfrac/high"), False),
    ("Gates passed", ("format_rate", "consistency_rate"), False),
    ("Steps of an answer", ("steps",), False),
    ("Steps and order", ("step_match", "order_strict", "order_lcs"), False),
    ("Content", ("content_score",), False),
    ("Gradient norm", ("grad_norm",), True),
    ("Learning rate", ("lr",), False),
    ("Seconds of a step", ("step_time/rollout", "step_time/update", "step_time/reward", "step_time/total"), False),
    ("Tokens a second", ("tokens_per_sec",), False),
)
_HEADINGS = {"pretrain": "Pretraining", "sft": "Supervised fine-tuning", "rl": "Reinforcement learning"}
_NO_PARTS = ("rewards/mean", "rewards/std", "rewards/invalid")


def page(runs: Runs) -> str:
    """The whole HTML text."""
    groups: dict[str, list[RunFiles]] = {}
    for run in runs.runs:
        groups.setdefault(run.stage, []).append(run)
    links = "".join(f'<a href="#{_text(stage)}">{_text(stage)}</a>' for stage in groups) if len(groups) > 1 else ""
    body = [f"<h1>{_text(runs.title)}</h1>", *map(_state, runs.runs), f"<nav>{links}</nav>" if links else ""]
    body += [_table(table) for table in runs.tables]
    body += [_stage(stage, members) for stage, members in groups.items()]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(runs.title)}</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _text(value: Any, most: int = 200) -> str:
    """Any value as HTML text: cut, control characters and other invisible ones shown as a box, escaped."""
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= most else text[: most - 1] + "…"
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\N{WHITE SQUARE}" for c in text))


def _state(run: RunFiles) -> str:
    planned = run.config.get("num_steps")
    state = "finished" if run.finished else "unfinished"
    of = f" of {planned}" if isinstance(planned, int) and planned > 0 else ""
    took = f"{run.hours:.1f} h" if run.hours >= 1 else f"{60 * run.hours:.1f} min"
    return f'<p class="dim">{_text(run.name)}: {_text(run.stage)}, step {run.step}{of}, {state}, {took}</p>'


def _table(table: Table) -> str:
    names = list(dict.fromkeys(name for row in table.rows.values() for name in row))
    heads = "".join(f"<th>{_text(name, 60)}</th>" for name in names)
    rows = [
        f"<tr><td>{_text(name, 60)}</td>" + "".join(f"<td>{_cell(row.get(one, ()))}</td>" for one in names) + "</tr>"
        for name, row in table.rows.items()
    ]
    interval = any(len(cell) == 3 for row in table.rows.values() for cell in row.values())
    said = '<p class="dim">Below each mean its 95 % interval.</p>' if interval else ""
    return (
        f'<h2>{_text(table.title)}</h2>{said}<div class="scroll"><table><tr><th></th>{heads}</tr>{"".join(rows)}'
        "</table></div>"
    )


def _cell(cell: Sequence[float]) -> str:
    if not cell:
        return ""
    mean = f"{cell[0]:.3f}" if abs(cell[0]) < 1000 else number(cell[0])
    return mean if len(cell) == 1 else f"{mean}<small>{cell[1]:.3f} to {cell[2]:.3f}</small>"


def _stage(stage: str, runs: list[RunFiles]) -> str:
    shown: set[str] = set()
    charts = []
    for title, metrics, log in _CHARTS:
        if title == "{parts}":
            parts = sorted({name for run in runs for _, name in run.curves if name.startswith("rewards/")})
            for name in parts:
                if name not in _NO_PARTS:
                    charts.append(_chart(f"Reward: {_short(name)}", (name,), runs, False))
                    shown.add(name)
            continue
        charts.append(_chart(title, metrics, runs, log))
        shown.update(metrics)
    rest = sorted({name for run in runs for _, name in run.curves} - shown)
    others = "".join(_chart(name, (name,), runs, False) for name in rest)
    blocks = [
        f'<h2 id="{_text(stage)}">{_text(_HEADINGS.get(stage, stage))}</h2><div class="charts">{"".join(charts)}</div>'
    ]
    if others:
        blocks.append(f'<details><summary>other metrics</summary><div class="charts">{others}</div></details>')
    for run in runs:
        blocks.append(_samples(run, f" of {_text(run.name)}" if len(runs) > 1 else ""))
    for run in runs:
        keys = "\n".join(f"{name} = {value!r}" for name, value in sorted(run.config.items()))
        of = f" of {_text(run.name)}" if len(runs) > 1 else ""
        if keys:
            blocks.append(
                f'<details><summary>configuration{of}</summary><pre class="text">{_text(keys, 20_000)}</pre></details>'
            )
    return "\n".join(blocks)


def _short(name: str) -> str:
    """A reward's name without the module that it comes from."""
    return name.removeprefix("rewards/").rpartition(":")[2]


def _chart(title: str, metrics: Sequence[str], runs: list[RunFiles], log: bool) -> str:
    """The metrics of all runs in one chart: colours tell runs apart, or of one run metrics and kinds."""
    series = []
    several = len(runs) > 1
    for at, run in enumerate(runs):
        for metric in metrics:
            for kind in ("train", "eval"):
                if (kind, metric) not in run.curves:
                    continue
                steps, values = run.curves[kind, metric]
                label = _label(run, metric, kind, several, len(metrics) > 1)
                evaluated = kind == "eval"
                colour = at if several else len(series)
                dashed = several and (evaluated or metrics.index(metric) > 0)
                series.append(Series(label, steps, values, colour, evaluated, dashed))
    return chart(_visible(title), [one._replace(label=_visible(one.label)) for one in series], log=log)


def _label(run: RunFiles, metric: str, kind: str, several: bool, metrics: bool) -> str:
    words = [run.name] if several else []
    words += [metric.rpartition("/")[2].replace("_length", "").replace("_", " ")] if metrics else []
    words += ["held-out"] if kind == "eval" else ["train"] if not words else []
    return " ".join(words)


def _visible(text: str) -> str:
    """For charts, which escape their texts themselves."""
    return html.unescape(_text(text, 100))


def _samples(run: RunFiles, of: str) -> str:
    step, rows = run.samples
    if not rows:
        return ""
    blocks = [f"<h3>Answers{of} at step {step} to {min(_SHOWN, len(rows))} of {len(rows)} held-out items</h3>"]
    if any(isinstance(row.get("explained"), dict) for row in rows):
        tags = {
            "matched": "as in the gold",
            "mismatched": "right action, other objects or parameters",
            "added": "no gold step goes with it",
            "missing": "a gold step that the answer lacks",
        }
        said = "".join(f'<span class="step {name}">{name}: {meaning}</span> ' for name, meaning in tags.items())
        blocks.append(f"<p>{said}</p>")
    return "\n".join([*blocks, *map(_answer, _chosen(rows))])


def _chosen(rows: list[dict]) -> list[dict]:
    """Some rows from the best reward to the worst; the first ones where there is no reward."""
    if all(isinstance(row.get("reward"), (int, float)) for row in rows):
        rows = sorted(rows, key=lambda row: -row["reward"])
    if len(rows) <= _SHOWN:
        return rows
    return [rows[round(at * (len(rows) - 1) / (_SHOWN - 1))] for at in range(_SHOWN)]


def _answer(row: Mapping[str, Any]) -> str:
    reward, parts, explained = row.get("reward"), row.get("parts"), row.get("explained")
    score = f'<span class="score">{reward:.3f}</span>' if isinstance(reward, (int, float)) else ""
    cut = " (cut off)" if row.get("finish_reason") == "length" else ""
    blocks = [f'<div class="answer">{score}<span class="id">{_text(row.get("id", ""))}</span>{cut}']
    for name in ("question", "document"):
        if isinstance(row.get(name), str):
            blocks.append(f'<p class="dim text">{_text(row[name], 1000)}</p>')
    if isinstance(explained, dict):
        blocks.append(_explained(explained))
    if isinstance(parts, dict) and parts:
        cells = "".join(
            f"<td>{_text(_short(str(name)), 40)}<small>{_value(value)}</small></td>" for name, value in parts.items()
        )
        blocks.append(f'<div class="scroll"><table><tr>{cells}</tr></table></div>')
    output = f'<pre class="text">{_text(row.get("output", ""), _LONGEST)}</pre>'
    if isinstance(explained, dict):
        output = f"<details><summary>the answer as it was written</summary>{output}</details>"
    return "".join([*blocks, output, "</div>"])


def _value(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else _text(value, 40)


def _explained(explained: Mapping[str, Any]) -> str:
    """What a Task says of an answer, see `task.Task.explain`."""
    blocks = [f'<p class="formula">{_text(explained.get("formula", ""), 400)}</p>']
    if explained.get("reason"):
        blocks.append(f'<p class="formula">refused: {_text(explained["reason"])}</p>')
    steps = explained.get("steps")
    for step in steps[:100] if isinstance(steps, list) else ():
        if not isinstance(step, dict):
            continue
        status = step.get("status") if step.get("status") in _STATUSES else "added"
        text, gold, note = (_text(step.get(name) or "", 500) for name in ("text", "gold", "note"))
        more = f'<span class="more">gold: <code>{gold}</code></span>' if status == "mismatched" else ""
        more += f'<span class="more">{note}</span>' if note else ""
        blocks.append(
            f'<div class="step {status}"><span class="tag">{status}</span><code>{text or gold}</code>{more}</div>'
        )
    return "".join(blocks)
