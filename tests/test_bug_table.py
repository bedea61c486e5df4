"""docs/bug_reports.md: every fault that was reported elsewhere has a test that exists, or a reason."""

import ast
import json
import re


def table(repo):
    lines = (repo / "docs" / "bug_reports.md").read_text().splitlines()
    return {line.split("|")[1].strip(): line for line in lines if re.match(r"\| B\d\d ", line)}


def test_every_test_that_the_table_names_exists(repo):
    names = {}
    for line in table(repo).values():
        found = re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", line)
        assert found or "cannot occur" in line, line
        for path, name in found:
            if path not in names:
                tree = ast.parse((repo / path).read_text())
                names[path] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in names[path], f"{path}::{name}"


def test_every_report_is_in_the_table(repo, shared):
    reports = json.loads((shared / "golden" / "bug_reports.json").read_text(encoding="utf-8"))
    assert {report["id"] for report in reports} == set(table(repo))
