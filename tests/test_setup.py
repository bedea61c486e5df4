"""What setup.py describes is what the packages need and hold."""

import ast
import fnmatch
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("thoth_jax", "vprm_jax")
# Where the imported name is not the name of what is installed.
DISTRIBUTIONS = {
    "absl": "absl-py",
    "bert_score": "bert-score",
    "etils": "etils",
    "huggingface_hub": "huggingface-hub",
    "ml_collections": "ml-collections",
    "orbax": "orbax-checkpoint",
    "rouge_score": "rouge-score",
    "yaml": "pyyaml",
}
# Part of another requirement, or of a peer's environment (bench/peers/serve.py runs there).
NOT_OURS = {"jaxlib", "torch", "tunix", "peft", "qwix"}


def setup_arguments() -> dict:
    tree = ast.parse((REPO / "setup.py").read_text(encoding="utf-8"))
    call = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setup"
    )
    literal = {}
    for keyword in call.keywords:
        try:
            literal[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            continue  # packages=find_packages(...)
    return literal


SETUP = setup_arguments()


def source_files(suffix: str = ".py"):
    for package in PACKAGES:
        for path in sorted((REPO / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and (path.suffix == ".py") == (suffix == ".py"):
                yield path


def distribution(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement).group().lower()


def test_requirements_are_ranges():
    extras = SETUP["extras_require"]
    for requirement in [*SETUP["install_requires"], *(item for extra in extras.values() for item in extra)]:
        assert ">=" in requirement and "==" not in requirement and "<" not in requirement, requirement
    assert set(extras) == {"gpu", "tpu", "eval", "gguf", "dev"}


def test_every_import_is_required():
    """Modules that the packages import come with the installation or with an extra."""
    extras = [item for extra in SETUP["extras_require"].values() for item in extra]
    required = {distribution(item) for item in [*SETUP["install_requires"], *extras]}
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in {name.split(".")[0] for name in names}:
                if name in sys.stdlib_module_names or name in PACKAGES or name in NOT_OURS:
                    continue
                if path.parent.name == "peers" and (path.parent / f"{name}.py").is_file():
                    continue  # other Pythons run these as scripts, beside their neighbours
                assert DISTRIBUTIONS.get(name, name).lower() in required, f"{path} imports {name}"


def test_every_directory_with_modules_is_a_package():
    for path in source_files():
        assert (path.parent / "__init__.py").is_file(), path.parent


def test_every_data_file_is_packaged():
    patterns = SETUP["package_data"][""]
    for path in source_files("data"):
        assert any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns), path
        assert (path.parent / "__init__.py").is_file(), path


def test_console_scripts_exist():
    for script in SETUP["entry_points"]["console_scripts"]:
        module, function = script.split("=")[1].split(":")
        tree = ast.parse((REPO / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, script


def test_installed_version_is_this_one():
    try:
        installed = importlib.metadata.version("thoth-jax")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("thoth-jax is not installed in this environment")
    assert installed == SETUP["version"]


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Run make as a user does, also when these tests are themselves run by make."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"
    }
    return subprocess.run(["make", *arguments], cwd=REPO, env=environment, capture_output=True, text=True, timeout=60)


def test_make_help_names_every_target():
    text = (REPO / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    shown = make("help").stdout
    for target in targets:
        assert target == "help" or f"make {target} " in shown, target


def test_make_refuses_a_wrong_python(tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    result = make("test", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert result.returncode != 0
    assert "need Python 3.11 to 3.13" in result.stderr and "PYTHON" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_make_creates_the_environment_once(tmp_path):
    """A stand-in Python, so that nothing is installed: the order of steps and their reuse are what is tested."""
    log = tmp_path / "log"
    fake = tmp_path / "python3"
    fake.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {log}\n'
        'if [ "$1 $2" = "-m venv" ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    arguments = ("test", f"PYTHON={fake}", f"VENV={tmp_path / 'venv'}", "WORKERS=3")
    first = make(*arguments)
    assert first.returncode == 0, first.stderr
    assert "creating" in first.stdout and "installing" in first.stdout
    second = make(*arguments)
    assert second.returncode == 0 and second.stdout == ""
    calls = log.read_text(encoding="utf-8").splitlines()
    assert sum("pip install" in call for call in calls) == 1
    assert sum("-m pytest -n 3" in call for call in calls) == 2
