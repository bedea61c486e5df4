"""Rooms import only rooms above them: the AST of every module is read, imports inside functions included."""

import ast
import pathlib

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent

# From top to bottom.
ROOMS = (
    "errors",
    "plugins",
    "config_keys",
    "config_presets",
    "config",
    "sharding",
    "task",
    "protocol",
    "rewards",
    "models",
    "rollout",
    "rl",
    "data",
    "train",
    "evaluation",
    "tasks",
    "plan",
    "report",
    "bench",
    "sweep",
    "generate",
    "convert",
    "quickstart",
    "cli_parser",
    "cli",
)
RANK = {room: rank for rank, room in enumerate(ROOMS)}


def modules(package: str) -> list[pathlib.Path]:
    return sorted((REPO / package).rglob("*.py"))


def imported(tree: ast.AST, module: str, is_package: bool) -> set[str]:
    """Full dotted names of all that a module imports; names after `from x import` count as possible submodules."""
    names = set()
    parts = module.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base]) if base else ".".join(above)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module" and node.args:
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                names.add(node.args[0].value)
    return names


def imports_of(path: pathlib.Path, root: pathlib.Path = REPO) -> set[str]:
    relative = path.relative_to(root).with_suffix("")
    is_package = relative.name == "__init__"
    module = ".".join(relative.parent.parts if is_package else relative.parts)
    return imported(ast.parse(path.read_text(encoding="utf-8"), str(path)), module, is_package)


def room_of(name: str) -> str | None:
    """The room of a name below thoth_jax, or None for the package itself and for attributes of it."""
    parts = name.split(".")
    if parts[0] != "thoth_jax" or len(parts) == 1:
        return None
    is_module = (REPO / "thoth_jax" / parts[1]).is_dir() or (REPO / "thoth_jax" / f"{parts[1]}.py").is_file()
    return parts[1] if is_module else None


def wrong_imports(path: pathlib.Path, root: pathlib.Path = REPO) -> list[str]:
    room = path.relative_to(root).parts[1].removesuffix(".py")
    if room == "__init__":
        above = -1
    elif room in RANK:
        above = RANK[room]
    else:
        return [f"room {room!r} has no place in ROOMS"]
    wrong = []
    for name in sorted(imports_of(path, root)):
        other = room_of(name)
        if other is not None and other != room and RANK.get(other, len(ROOMS)) >= above:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", modules("thoth_jax"), ids=lambda path: str(path.relative_to(REPO)))
def test_rooms_import_only_rooms_above(path):
    assert not wrong_imports(path)


def test_thoth_never_imports_vprm():
    for path in modules("thoth_jax"):
        for name in imports_of(path):
            assert name.split(".")[0] != "vprm_jax", f"{path} imports {name}"


def test_packages_never_import_tests_or_configs():
    for path in modules("thoth_jax") + modules("vprm_jax"):
        for name in imports_of(path):
            assert name.split(".")[0] not in ("tests", "configs"), f"{path} imports {name}"


def test_violations_are_seen(tmp_path):
    """The check itself: imports at the top, inside functions, relative and by name."""
    room = tmp_path / "thoth_jax" / "protocol"
    room.mkdir(parents=True)
    path = room / "wrong.py"
    for line in (
        "import thoth_jax.models.qwen",
        "from thoth_jax import models",
        "from thoth_jax.models import qwen",
        "from ..models import qwen",
        "def f():\n    from thoth_jax.models.qwen import forward",
        "import importlib\nimportlib.import_module('thoth_jax.models')",
    ):
        path.write_text(line, encoding="utf-8")
        assert wrong_imports(path, tmp_path), line
    path.write_text("from thoth_jax.errors import InputError\nfrom . import grammar\nimport json", encoding="utf-8")
    assert not wrong_imports(path, tmp_path)
