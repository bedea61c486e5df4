"""launch/local.sh: what it would run, what it passes on, and starting again after a preemption."""

import functools
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.scripts import LAUNCH, run_script

SCRIPT = LAUNCH / "local.sh"
SETTINGS = (
    "CONFIG",
    "NUM_DEVICES",
    "MEM_FRACTION",
    "CACHE_DIR",
    "MAX_RESTARTS",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PLATFORMS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)


launch = functools.partial(run_script, "local.sh", SETTINGS)


def fake_thoth(directory: pathlib.Path, *codes: int) -> pathlib.Path:
    """A command `thoth` that notes its arguments and environment and exits with the codes given, then with 0."""
    directory.mkdir()
    (directory / "codes").write_text("".join(f"{code}\n" for code in codes), encoding="utf-8")
    script = directory / "thoth"
    script.write_text(
        "#!/usr/bin/env bash\n"
        f"cd {shlex.quote(str(directory))}\n"
        'printf "%s\\n" "$*" >> calls\n'
        "env > environment\n"
        "code=$(head -n 1 codes); sed -i 1d codes\n"
        'exit "${code:-0}"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return directory


def calls(directory: pathlib.Path) -> list[str]:
    return (directory / "calls").read_text(encoding="utf-8").splitlines()


def test_dry_run_prints_the_command_and_runs_nothing(tmp_path):
    bin_dir = fake_thoth(tmp_path / "bin")
    result = launch(
        "--dry-run", "--config.run_dir=a b", path=bin_dir, CONFIG="my.py", NUM_DEVICES="8", CACHE_DIR="/tmp/cache"
    )
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    assert words[-4:] == ["thoth", "train", "--config=my.py", "--config.run_dir=a b"]
    assert "JAX_COMPILATION_CACHE_DIR=/tmp/cache" in words
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9" in words
    assert "JAX_PLATFORMS=cpu" in words
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=8" in words
    assert not (bin_dir / "calls").exists()


def test_real_devices_are_left_alone(tmp_path):
    words = shlex.split(launch("--dry-run", XLA_FLAGS="--mine").stdout)
    assert not any(word.startswith(("JAX_PLATFORMS=", "XLA_FLAGS=")) for word in words)


def test_own_flags_are_kept_beside_ours():
    words = shlex.split(launch("--dry-run", XLA_FLAGS="--mine", NUM_DEVICES="2").stdout)
    assert "XLA_FLAGS=--mine --xla_force_host_platform_device_count=2" in words


def test_default_config_exists():
    words = shlex.split(launch("--dry-run").stdout)
    config = next(word for word in words if word.startswith("--config=")).removeprefix("--config=")
    assert (SCRIPT.parent.parent / config).is_file()


def test_runs_with_arguments_and_environment(tmp_path):
    bin_dir = fake_thoth(tmp_path / "bin")
    result = launch("--config.steps=3", "two words", path=bin_dir, CONFIG="c.py", CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
    assert calls(bin_dir) == ["train --config=c.py --config.steps=3 two words"]
    environment = (bin_dir / "environment").read_text(encoding="utf-8").splitlines()
    assert f"JAX_COMPILATION_CACHE_DIR={tmp_path / 'cache'}" in environment
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9" in environment


def test_preempted_runs_start_again_with_the_same_command(tmp_path):
    bin_dir = fake_thoth(tmp_path / "bin", 75, 75, 0)
    result = launch("--config.steps=3", path=bin_dir, CONFIG="c.py")
    assert result.returncode == 0
    assert calls(bin_dir) == ["train --config=c.py --config.steps=3"] * 3
    assert result.stderr.count("preempted; starting again") == 2


@pytest.mark.parametrize("code", [1, 2, 137])
def test_other_exit_codes_end_it(tmp_path, code):
    bin_dir = fake_thoth(tmp_path / "bin", 75, code)
    assert launch(path=bin_dir).returncode == code
    assert len(calls(bin_dir)) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once_and_ends_it(tmp_path, number):
    bin_dir = fake_thoth(tmp_path / "bin")
    (bin_dir / "thoth").write_text(
        f"#!{sys.executable}\n"
        "import pathlib, signal, sys, time\n"
        "calls = pathlib.Path(__file__).parent / 'calls'\n"
        "for number in (signal.SIGTERM, signal.SIGINT):\n"
        "    signal.signal(number, lambda number, frame: calls.open('a').write(f'signal {number}\\n'))\n"
        "calls.open('a').write('started\\n')\n"
        "while 'signal' not in calls.read_text():\n"
        "    time.sleep(0.02)\n"
        "time.sleep(0.2)\n"
        "sys.exit(75)\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}"}
    # A test run in the background of a script ignores SIGINT, its children inherit that, and bash cannot trap it then.
    restore = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execvp('bash', ['bash', *sys.argv[1:]])"
    )
    words = [sys.executable, "-c", restore, str(SCRIPT)]
    process = subprocess.Popen(words, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not (bin_dir / "calls").exists() or "started" not in calls(bin_dir):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, number)
        assert process.wait(timeout=30) == 75
    finally:
        process.kill()
    assert calls(bin_dir) == ["started", f"signal {number.value}"]


def test_restarts_are_limited(tmp_path):
    bin_dir = fake_thoth(tmp_path / "bin", *[75] * 9)
    result = launch(path=bin_dir, MAX_RESTARTS="2")
    assert result.returncode == 75
    assert len(calls(bin_dir)) == 3
    assert "more than 2 times" in result.stderr
