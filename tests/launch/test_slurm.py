"""launch/slurm.sbatch: what it would run, and queueing again after a preemption."""

import functools

import pytest

from tests.launch.scripts import LAUNCH, run_script

SCRIPT = LAUNCH / "slurm.sbatch"
SETTINGS = ("CONFIG", "MEM_FRACTION", "CACHE_DIR", "VENV", "SRUN", "JAX_COMPILATION_CACHE_DIR", "SLURM_JOB_ID")


submit = functools.partial(run_script, "slurm.sbatch", SETTINGS)


@pytest.fixture
def cluster(tmp_path):
    """Commands srun, thoth and scontrol that note their arguments; srun exits with the code in the file `code`."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, end in (("srun", f'exit "$(cat {tmp_path}/code)"'), ("thoth", ""), ("scontrol", "")):
        file = commands / name
        file.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "{name} $*" >> {tmp_path}/calls\n{end}\n')
        file.chmod(0o755)
    (tmp_path / "code").write_text("0")
    (tmp_path / "calls").write_text("")
    return tmp_path


def calls(cluster) -> list[str]:
    return (cluster / "calls").read_text().splitlines()


def test_dry_run_prints_the_command_and_runs_nothing(cluster):
    result = submit("--dry-run", "--config.num_steps=3", path=cluster / "bin", CONFIG="a b.py", CACHE_DIR="/c")
    assert result.returncode == 0, result.stderr
    assert "srun --kill-on-bad-exit=1 thoth train --config=a\\ b.py --config.num_steps=3" in result.stdout
    assert "JAX_COMPILATION_CACHE_DIR=/c" in result.stdout and "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9" in result.stdout
    assert calls(cluster) == []


def test_settings_reach_the_command(cluster):
    result = submit("--dry-run", path=cluster / "bin", SRUN="srun -n 4", MEM_FRACTION="0.5")
    assert "srun -n 4 thoth train --config=configs/thoth/sft_8b.py" in result.stdout
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.5" in result.stdout


def test_arguments_with_spaces_stay_whole(cluster):
    submit("--config.run_dir=my run; touch evil", path=cluster / "bin")
    assert calls(cluster) == [
        "srun --kill-on-bad-exit=1 thoth train --config=configs/thoth/sft_8b.py --config.run_dir=my run; touch evil"
    ]


@pytest.mark.parametrize(("code", "requeued"), [("0", False), ("75", True), ("2", False), ("1", False)])
def test_only_a_preempted_job_is_queued_again(cluster, code, requeued):
    (cluster / "code").write_text(code)
    result = submit(path=cluster / "bin", SLURM_JOB_ID="42")
    assert result.returncode == int(code)
    assert ("scontrol requeue 42" in calls(cluster)) == requeued


def test_one_process_a_gpu():
    directives = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    settings = dict(line.removeprefix("#SBATCH --").split("=", 1) for line in directives if "=" in line)
    assert settings["ntasks-per-node"] == settings["gpus-per-node"]
    assert settings["signal"].startswith("TERM@") and "#SBATCH --requeue" in directives
    assert not any("gpus-per-task" in line or "gpu-bind" in line for line in directives)
