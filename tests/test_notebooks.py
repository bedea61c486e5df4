"""Notebooks run as they are shipped, with fewer steps; their code needs no Jupyter."""

import ast
import json
import xml.etree.ElementTree

import jax
import pytest

NOTEBOOKS = ("01_first_run.ipynb",)


def run(cells, namespace):
    """Execute code cells as Jupyter does: the value of a last expression is what a cell shows."""
    shown = []
    for number, cell in enumerate(cells):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace))
    return shown


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_shipped_clean(repo, name):
    notebook = json.loads((repo / "notebooks" / name).read_text(encoding="utf-8"))
    assert sorted(path.name for path in (repo / "notebooks").glob("*.ipynb")) == sorted(NOTEBOOKS)
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and not cell.get("outputs") and not cell.get("execution_count")


def test_first_run(repo, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("THOTH_NOTEBOOK_STEPS", "2")
    monkeypatch.setenv("THOTH_NOTEBOOK_RUNS", str(tmp_path))
    monkeypatch.chdir(repo / "notebooks")
    one = jax.devices()[:1]  # as a reader has it; for eight devices the programs compile twice as long
    monkeypatch.setattr(jax, "devices", lambda: one)
    notebook = json.loads((repo / "notebooks" / NOTEBOOKS[0]).read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = run(cells, {})
    [svg] = [value._repr_svg_() for value in shown if hasattr(value, "_repr_svg_")]
    titles = [text.text for text in xml.etree.ElementTree.fromstring(svg).iter() if text.get("class") == "title"]
    assert titles == ["SCORE", "format gate", "consistency gate", "step scale", "order", "content"]
    assert "polyline" in svg and (tmp_path / "report.html").exists()
    printed = capsys.readouterr().out
    assert "SCORE 2.5 = format 1" in printed
    assert "SCORE 2.333 = " in printed and "[objects 0.5, parameters 1]" in printed
    assert "refused: low_coverage" in printed and "refused: missing_block:note" in printed
