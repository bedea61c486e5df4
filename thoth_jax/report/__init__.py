"""`thoth report`: the curves, results and sample answers of runs as one HTML page that needs nothing beside it."""

from collections.abc import Sequence

from etils import epath

from thoth_jax.report.figure import Figure, figure
from thoth_jax.report.page import page
from thoth_jax.report.runs import read_runs

__all__ = ["Figure", "figure", "write_report"]


def write_report(paths: Sequence[str], out: str = "") -> str:
    """Write the report of run directories, or of directories that hold them (a quickstart's), finished or not.

    Args:
      paths: the directories; runs of the same stage share their charts.
      out: the file; empty: report.html in the directory, or in the current one where there are several.

    Returns:
      The file's path.

    Raises:
      InputError: a path holds no run.
    """
    text = page(read_runs(paths))
    file = epath.Path(out) if out else epath.Path(paths[0] if len(paths) == 1 else ".") / "report.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.parent / f"{file.name}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
    return str(file)
