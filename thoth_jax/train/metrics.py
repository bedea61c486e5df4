"""Metrics of a run: metrics.jsonl and TensorBoard, one row a step, no gap and no double after a resume."""

import json
import math
import time
from collections.abc import Mapping
from typing import Any

import tensorboardX
from etils import epath

from thoth_jax.sharding import is_leader, meet


class Metrics:
    """Writes RUN/metrics.jsonl and RUN/tensorboard; of several processes only the first one does.

    Args:
      run_dir: the run directory.
      start_step: updates already done; rows of later steps (the run died after its last checkpoint) are removed.
    """

    def __init__(self, run_dir: str, start_step: int):
        directory = epath.Path(run_dir)
        self._path = directory / "metrics.jsonl"
        kept = [row for row in read_metrics(run_dir) if row["step"] <= start_step] if self._path.exists() else []
        self._written = {(row["step"], row["kind"]) for row in kept}
        self._file = self._board = None
        meet("metrics are read")
        if not is_leader():
            return
        # Written anew and renamed: a crash here loses nothing.
        temporary = directory / "metrics.jsonl.tmp"
        temporary.write_text("".join(_line(row) for row in kept))
        temporary.replace(self._path)
        self._file = self._path.open("a")
        purge = start_step + 1 if start_step else None
        self._board = tensorboardX.SummaryWriter(str(directory / "tensorboard"), purge_step=purge)

    def has(self, step: int, kind: str) -> bool:
        """Whether the row of (step, kind) is there."""
        return (step, kind) in self._written

    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """One row {"step", "kind", "time", **values}; kind is "train" or "eval". A (step, kind) is written once."""
        if (step, kind) in self._written:
            return
        self._written.add((step, kind))
        if self._file is None:
            return
        row = {"step": step, "kind": kind, "time": round(time.time(), 3)}
        row.update({name: _number(value) for name, value in values.items()})
        self._file.write(_line(row))
        self._file.flush()
        for name, value in values.items():
            if isinstance(_number(value), (int, float)):
                self._board.add_scalar(f"{kind}/{name}", _number(value), step)

    def close(self) -> None:
        """Flush both."""
        if self._file is None:
            return
        self._file.close()
        self._board.close()


def read_metrics(run_dir: str) -> list[dict[str, Any]]:
    """Rows of a run's metrics.jsonl; a last line that was cut off by a crash is left out."""
    path = epath.Path(run_dir) / "metrics.jsonl"
    rows = []
    for line in path.read_text().split("\n") if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _number(value: Any) -> Any:
    """A plain Python number; NaN and infinities become null, which is what JSON has."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
