"""Two processes with four devices each train as one process with eight does, and only the first one writes."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import QUICK
from tests.train.conftest import OWN, TINY
from thoth_jax import config as configuration
from thoth_jax.train.metrics import read_metrics


def start(config: str, devices: int, **environment: str) -> subprocess.Popen:
    flags = " ".join([f"--xla_force_host_platform_device_count={devices}", *QUICK])
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **environment}
    command = [sys.executable, "-m", "thoth_jax.cli", "train", "--config", config]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def write_config(tmp_path, stage: str, name: str, *overrides: str) -> str:
    small = ("model.num_layers=1", "eval_at_start=false", "eval_examples=1")  # every program is compiled three times
    keys = [f"stage={stage}", f"run_dir={tmp_path / name}", "num_steps=2", "mesh.fsdp=4", "mesh.tensor=2", *small]
    keys += overrides
    file = tmp_path / f"{name}.json"
    file.write_text(configuration.to_json(configuration.load(None, keys, {**TINY, **OWN[stage]})))
    return str(file)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_two_processes_equal_one(tmp_path, stage, rewarded):
    reward = (rewarded,) if stage == "rl" else ()
    one, two = (write_config(tmp_path, stage, name, *reward) for name in ("one", "two"))
    single = start(one, 8)
    assert single.communicate(timeout=300)[0] is not None and single.returncode == 0
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    both = [start(two, 4, **address, JAX_PROCESS_ID=str(rank)) for rank in range(2)]
    try:
        output = [process.communicate(timeout=300)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], "\n".join(output)[-4000:]
    rows = [read_metrics(str(tmp_path / name)) for name in ("one", "two")]
    assert [(row["step"], row["kind"]) for row in rows[0]] == [(row["step"], row["kind"]) for row in rows[1]]
    for before, after in zip(*rows, strict=True):
        for name, value in before.items():
            if name not in ("kind", "time", "tokens_per_sec", "compile/count") and not name.startswith("step_time/"):
                np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    summary = [json.loads((tmp_path / name / "summary.json").read_text())["steps"] for name in ("one", "two")]
    assert summary == [2, 2]
    assert (tmp_path / "two" / "checkpoints" / "2").exists()
    log = (tmp_path / "two" / "log.txt").read_text()
    assert log.count("step 2: eval") == 1
    assert "process 0 of 2: 4 of 8 devices" in output[0] and "process 1 of 2: 4 of 8 devices" in output[1]
