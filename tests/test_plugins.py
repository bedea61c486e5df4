"""Import by path and arguments checked against signatures."""

import pytest

from thoth_jax.errors import InputError
from thoth_jax.plugins import check_kwargs, import_object
from thoth_jax.task import load_task


def test_a_file_in_the_working_directory_imports_by_name_and_by_path(tmp_path, monkeypatch):
    (tmp_path / "own_reward_a.py").write_text("def reward(x): return 1\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own_reward_b.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Reward:\n    x: int\n"
    )
    monkeypatch.chdir(tmp_path)
    assert import_object("own_reward_a:reward")(0) == 1
    assert import_object("sub/own_reward_b.py:Reward")(3).x == 3


@pytest.mark.parametrize(
    "path, expected",
    [
        ("nocolon", "expected 'module:name'"),
        ("no_such_module_x:f", "no module 'no_such_module_x'"),
        ("missing_file.py:f", "no file 'missing_file.py'"),
        ("thoth_jax.plugins:import_objct", "did you mean 'import_object'?"),
    ],
)
def test_bad_paths_are_refused(path, expected):
    with pytest.raises(InputError, match=expected.replace("?", r"\?")):
        import_object(path)


def test_an_import_error_inside_the_users_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "own_reward_c.py").write_text("import no_such_dependency_y\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency_y"):
        import_object("own_reward_c:f")


def test_kwargs_are_checked_against_the_signature():
    def reward(examples, completions, *, scale=1.0, needed):
        return scale, needed

    check_kwargs(reward, {"needed": 1}, "rewards[0].kwargs", positional=2)
    with pytest.raises(InputError, match=r"rewards\[0\].kwargs.scal: .*did you mean 'scale'"):
        check_kwargs(reward, {"scal": 1, "needed": 1}, "rewards[0].kwargs", positional=2)
    with pytest.raises(InputError, match="needs the argument 'needed'"):
        check_kwargs(reward, {}, "rewards[0].kwargs", positional=2)
    with pytest.raises(InputError, match="takes no argument 'examples'"):
        check_kwargs(reward, {"examples": 1, "needed": 1}, "rewards[0].kwargs", positional=2)
    check_kwargs(lambda **anything: 0, {"what": 1}, "task_args")


def test_load_task_checks_arguments_and_interface(tmp_path, monkeypatch):
    (tmp_path / "own_task_d.py").write_text("class T:\n    name = 't'\n    def __init__(self, n: int = 0): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="task_args.m: T takes no argument 'm'"):
        load_task("own_task_d:T", {"m": 1})
    with pytest.raises(InputError, match="lacks documents, examples"):
        load_task("own_task_d:T", {"n": 1})
