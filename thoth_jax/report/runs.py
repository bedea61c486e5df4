"""What a report reads of run directories. Runs may be unfinished and their files cut off; what cannot be read is left
out."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from thoth_jax.config import STAGES, flatten
from thoth_jax.errors import InputError

_MOST_SAMPLES = 1000  # rows of a samples file that are read


@dataclasses.dataclass(frozen=True)
class Table:
    """Results as rows of {metric: (value,) or (mean, low, high)}."""

    title: str
    rows: Mapping[str, Mapping[str, tuple[float, ...]]]


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """A run as its files tell it.

    name: shown, unlike that of other runs. stage: "pretrain", "sft", "rl" or "run". finished: it has its summary.
    curves: {(kind, metric): (steps, values)}, kind "train" or "eval", finite numbers only, steps rising.
    samples: (step, rows) of the newest samples file.
    hours: from the first to the last metric.
    """

    name: str
    stage: str
    finished: bool
    config: Mapping[str, Any]
    curves: Mapping[tuple[str, str], tuple[list[float], list[float]]]
    samples: tuple[int, list[dict]]
    hours: float

    @property
    def step(self) -> int:
        """The newest step that has a metric."""
        return int(max((steps[-1] for steps, _ in self.curves.values()), default=0))


@dataclasses.dataclass(frozen=True)
class Runs:
    """All that a page shows."""

    title: str
    runs: list[RunFiles]
    tables: list[Table]


def read_runs(paths: Sequence[str]) -> Runs:
    """Read run directories, or directories whose subdirectories are runs.

    Raises:
      InputError: a path is no directory, or there is no run in it.
    """
    runs, tables = [], []
    several = len(paths) > 1
    names = _short_names(paths)
    for path, name in zip(paths, names, strict=True):
        directory = epath.Path(path)
        if not directory.is_dir():
            raise InputError(f"{path}: no such directory")
        if _is_run(directory):
            runs.append(_read(directory, name))
        else:
            inside = [child for child in directory.iterdir() if child.is_dir() and _is_run(child)]
            if not inside:
                raise InputError(f"{path}: no run (no config.json or metrics.jsonl), and none in its subdirectories")
            inside.sort(key=lambda child: (_order(child.name), child.name))
            runs += [_read(child, f"{name}/{child.name}" if several else child.name) for child in inside]
        tables += [
            dataclasses.replace(table, title=f"{name}: {table.title}" if several else table.title)
            for table in _tables(_read_json(directory / "summary.json"))
        ]
    return Runs(", ".join(names), runs, tables)


def _is_run(directory: epath.Path) -> bool:
    if (directory / "metrics.jsonl").exists():
        return True
    config = _read_json(directory / "config.json")  # a Hugging Face model has one, too
    return isinstance(config, dict) and config.get("stage") in STAGES


def _order(stage: str) -> int:
    """Place of a stage; sft_continued comes with sft."""
    return next((place for place, name in enumerate(STAGES) if stage.startswith(name)), len(STAGES))


def _short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    parts = [[part for part in str(path).split("/") if part not in ("", ".")] or [str(path)] for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(own[-count:]) for own in parts]
        if len(set(names)) == len(set(map(str, paths))):
            break
    return names


def _read(directory: epath.Path, name: str) -> RunFiles:
    config = _read_json(directory / "config.json")
    config = config if isinstance(config, dict) else {}
    rows = [row for row in _read_lines(directory / "metrics.jsonl") if _finite(row.get("step"))]
    curves: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        for metric, value in row.items():
            if metric not in ("step", "kind", "time") and _finite(value):
                curves.setdefault((str(row.get("kind")), metric), {})[row["step"]] = float(value)
    times = [row["time"] for row in rows if _finite(row.get("time"))]
    stage = config.get("stage")
    return RunFiles(
        name,
        stage if stage in STAGES else "run",
        (directory / "summary.json").exists(),
        flatten(config),
        {key: (sorted(points), [points[step] for step in sorted(points)]) for key, points in curves.items()},
        _newest_samples(directory / "samples"),
        (max(times) - min(times)) / 3600 if times else 0.0,
    )


def _newest_samples(directory: epath.Path) -> tuple[int, list[dict]]:
    files = list(directory.iterdir()) if directory.is_dir() else []
    steps = [int(file.stem) for file in files if file.suffix == ".jsonl" and file.stem.isdecimal()]
    if not steps:
        return 0, []
    return max(steps), list(_read_lines(directory / f"{max(steps)}.jsonl"))[:_MOST_SAMPLES]


def _tables(summary: Any, *names: str) -> list[Table]:
    """Every part of a summary that holds metrics, under the names that lead to it; parts of one parent are one table.

    A metric is a number, or a list [mean, low, high].
    """
    if not isinstance(summary, dict):
        return []
    rows, tables = {}, []
    for name, part in summary.items():
        metrics = (
            {metric: cell for metric, value in part.items() if (cell := _cell(value))} if isinstance(part, dict) else {}
        )
        if metrics:
            rows[str(name)] = metrics
        elif isinstance(part, dict) and len(names) < 4:
            tables += _tables(part, *names, str(name))
    return ([Table(" / ".join(names) or "results", rows)] if rows else []) + tables


def _cell(value: Any) -> tuple[float, ...]:
    if _finite(value):
        return (float(value),)
    if isinstance(value, list) and len(value) == 3 and _finite(value[0]):
        return tuple(float(bound) if _finite(bound) else math.nan for bound in value)
    return ()


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _read_json(file: epath.Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _read_lines(file: epath.Path) -> Iterator[dict]:
    """The JSON objects of a file, one a line; other lines, as a crash leaves them, are passed over."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row
