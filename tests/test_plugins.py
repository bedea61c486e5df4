"""Import by path and arguments checked against signatures."""

import pytest

from thoth_jax.errors import InputError
from thoth_jax.plugins import check_kwargs, import_object, user_error
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


@pytest.mark.parametrize(
    "text, line",
    [
        ("import no_such_dependency_y\n", "1: ModuleNotFoundError: No module named 'no_such_dependency_y'"),
        ("x = 1\ndef f(:\n", "2: SyntaxError: "),
        ("import json\n\njson.loads('{')\n", "3: JSONDecodeError: Expecting property name"),
        ("import sys\nsys.exit(3)\n", "2: SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("path", ["own_reward_{}:f", "own_reward_{}.py:f"])
def test_what_a_users_module_raises_is_one_line_that_names_its_line(tmp_path, monkeypatch, text, line, path):
    name = str(abs(hash(text)))
    (tmp_path / f"own_reward_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        import_object(path.format(name))
    assert f"own_reward_{name}.py:{line}" in str(caught.value) and "\n" not in str(caught.value)


def test_an_exception_is_the_users_if_it_passed_through_an_imported_file(tmp_path, monkeypatch):
    (tmp_path / "own_reward_e.py").write_text("import json\n\ndef f():\n    return json.loads('{')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        import_object("own_reward_e:f")()
    assert user_error(caught.value).startswith(f"{tmp_path / 'own_reward_e.py'}:4: JSONDecodeError: Expecting")
    assert user_error(ValueError("ours")) is None


@pytest.mark.parametrize(
    "annotation, good, bad, expected",
    [
        ("int", 3, 3.5, "a whole number, got float"),
        ("int", 0, True, "a whole number, got bool"),
        ("float", 1, "1", "a number, got str"),
        ("bool", False, 0, "true or false, got int"),
        ("str", "a", None, "a text, got NoneType"),
        ("str | None", None, 5, "a text or null, got int"),
        ("dict", {"a": 1}, [1], "a mapping, got list"),
        ("list[int]", [1], "1", "a list, got str"),
    ],
)
def test_values_are_checked_against_annotations(tmp_path, monkeypatch, annotation, good, bad, expected):
    scope = {}
    exec(f"def f(x: {annotation}, y: 'NoSuchName' = 0): pass\ndef g(x: {annotation}): pass", scope)
    for name in "fg":
        check_kwargs(scope[name], {"x": good}, "task_args")
    with pytest.raises(InputError, match=f"task_args.x={bad!r}: expected {expected}".replace("[", r"\[")):
        check_kwargs(scope["g"], {"x": bad}, "task_args")


@pytest.mark.parametrize("thing", [max, print, 3, "text"])
def test_what_has_no_signature_is_refused(thing):
    if thing is print:
        return check_kwargs(print, {"sep": ""}, "rewards[0].kwargs")
    with pytest.raises(InputError, match="expected a function or a class that is written in Python"):
        check_kwargs(thing, {}, "rewards[0].kwargs")


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
