"""Contenders of a benchmark: one process each, with the same weights and allocator settings, asked in turn."""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from thoth_jax.errors import InputError
from thoth_jax.models.qwen import QwenConfig

# 4.2 million parameters: the tiny Qwen3 that the peers' published figures were measured with.
TINY = QwenConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
)
_SCRIPTS = pathlib.Path(__file__).parent / "peers"
# Freed memory stays with the process; without these, page faults cost every contender, and not all of them alike.
KEEP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**28),
    "MALLOC_ARENA_MAX": "1",
}


def environment_of(allocator: str) -> dict[str, str]:
    """The environment of every contender: with `KEEP` for "keep", ours as it is for "default"."""
    return dict(os.environ) | (KEEP if allocator == "keep" else {})


def pythons_of(peers: Sequence[str]) -> dict[str, str]:
    """Name -> Python executable of each contender, ours first.

    Raises:
      InputError: a peer's Python does not start, or has neither google-tunix nor transformers and torch.
    """
    return {"thoth": sys.executable} | {_kind(path): path for path in peers}


def _kind(python: str) -> str:
    """Which peer an environment holds."""
    probe = (
        "import importlib.util as u; print('tunix' if u.find_spec('tunix') else"
        " 'transformers' if u.find_spec('torch') and u.find_spec('transformers') else '')"
    )
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=120, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--peer-python {python}: does not start ({error})") from error
    kind = done.stdout.strip()
    if done.returncode or not kind:
        raise InputError(f"--peer-python {python}: needs google-tunix, or transformers and torch, installed in it")
    return kind


class Contender:
    """A process that answers requests: PYTHON peers/SCRIPT KIND MODEL_DIR SETTINGS."""

    def __init__(self, script: str, kind: str, python: str, model: str, settings: str, environment: dict[str, str]):
        command = [python, str(_SCRIPTS / script), kind, model, settings]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=model,
        )
        self.hello = self._answer()

    def ask(self, request: dict) -> dict:
        """The answer to a request; {"error": ...} where there is none."""
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has died: there is no answer either
        return self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": f"ended with code {self._process.wait()}"}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def machine() -> dict[str, Any]:
    """What the figures depend on: CPUs, load, device and the speed of a large matrix product here and now."""
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
        "matmul_gflops": _matmul_gflops(),
    }


def _matmul_gflops(size: int = 2048) -> float:
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    product(x, x).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9
