"""`thoth bench rollout`: the engine beside other samplers, on the same weights, interleaved, a process each."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.errors import InputError
from thoth_jax.models import hf
from thoth_jax.models.qwen import QwenConfig, init_params

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
_SERVE = pathlib.Path(__file__).parent / "peers" / "serve.py"
# Freed memory stays with the process; without these, page faults cost every contender, and not all of them alike.
KEEP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**28),
    "MALLOC_ARENA_MAX": "1",
}


class Case(NamedTuple):
    """Prompts of one length, G samples each, of `shortest` to `longest` tokens (drawn), in `slots` rows."""

    prompts: int
    prompt_length: int
    group_size: int
    shortest: int
    longest: int
    slots: int


CASES = {
    "even": Case(8, 64, 8, 128, 128, 64),
    "refill": Case(16, 64, 8, 16, 128, 64),
    "prefix": Case(8, 512, 8, 128, 128, 64),
    "long": Case(1, 8192, 8, 32, 32, 8),
}


def bench_rollout(
    peers: Sequence[str] = (),
    cases: Sequence[str] = tuple(CASES),
    repeats: int = 5,
    seed: int = 0,
    allocator: str = "keep",
    config: QwenConfig = TINY,
) -> dict[str, Any]:
    """Time our engine and each peer on the same prompts, one after the other, after one call that compiles.

    Args:
      peers: Python executables of environments with google-tunix or with transformers and torch.
      cases: names of `CASES`.
      allocator: "keep" gives every contender `KEEP`, "default" leaves it alone.

    Returns:
      Per case and contender: tokens per second (median, smallest, largest), seconds of the prompts with one token each,
      peak memory of the process; per case the time that the products of weights and attention need at the measured
      speed of a large matrix product, our share of it, and how many times the fastest peer's rate ours is.

    Raises:
      InputError: a peer's Python has neither library, or does not start.
    """
    contenders = {"thoth": sys.executable} | {_kind(path): path for path in peers}
    result: dict[str, Any] = {
        "config": {"repeats": repeats, "seed": seed, "allocator": allocator, "group_size": 8},
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
        "matmul_gflops": _matmul_gflops(),
        "cases": {},
    }
    environment = dict(os.environ) | (KEEP if allocator == "keep" else {})
    with tempfile.TemporaryDirectory() as model:
        hf.save(model, config, init_params(config, jax.random.key(seed)), None)
        for name in cases:
            found = _measure(CASES[name], contenders, model, repeats, seed, environment, config)
            floor = _operations(CASES[name], config, found.pop("lengths")) / result["matmul_gflops"] / 1e9
            rates = {who: row["tokens_per_s"] for who, row in found.items() if "tokens_per_s" in row}
            others = [rate for who, rate in rates.items() if who != "thoth"]
            result["cases"][name] = {"case": CASES[name]._asdict(), **found, "floor_s": floor}
            if "thoth" in rates:
                result["cases"][name]["share_of_floor"] = floor / found["thoth"]["wall_s"]
                if others:
                    result["cases"][name]["times_the_best_peer"] = rates["thoth"] / max(others)
    return result


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


class _Contender:
    """A process that serves requests."""

    def __init__(self, kind: str, python: str, model: str, cache_length: int, environment: dict[str, str]):
        command = [python, str(_SERVE), kind, model, str(cache_length)]
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


def _measure(case: Case, pythons, model: str, repeats: int, seed: int, environment, config: QwenConfig) -> dict:
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, config.vocab_size, (case.prompts, case.prompt_length)).tolist()
    lengths = rng.integers(case.shortest, case.longest + 1, (case.prompts, case.group_size)).tolist()
    ones = [[1] * case.group_size] * case.prompts
    request = {"prompts": prompts, "lengths": lengths, "slots": case.slots, "seed": 0}
    found: dict[str, Any] = {"lengths": lengths}
    running = {}
    try:
        for who, python in pythons.items():
            contender = _Contender(who, python, model, case.prompt_length + case.longest, environment)
            # Both requests once before anything is timed: they compile.
            first = contender.hello if "error" in contender.hello else contender.ask(request)
            first = first if "error" in first else contender.ask(request | {"lengths": ones})
            if "error" in first:
                found[who] = {"error": first["error"]}
                contender.close()
            else:
                running[who] = contender
        times: dict[str, list] = {who: [] for who in running}
        prefill: dict[str, list] = {who: [] for who in running}
        peak = {}
        for number in range(1, repeats + 1):
            for who, contender in running.items():
                row = contender.ask(request | {"seed": number})
                prefill[who].append(contender.ask(request | {"seed": number, "lengths": ones})["seconds"])
                times[who].append(row["seconds"])
                peak[who] = row["peak_mb"]
                time.sleep(0.05)
    finally:
        for contender in running.values():
            contender.close()
    tokens = sum(map(sum, lengths))
    for who, seconds in times.items():
        median = statistics.median(seconds)
        found[who] = running[who].hello | {
            "wall_s": median,
            "tokens_per_s": tokens / median,
            "tokens_per_s_min": tokens / max(seconds),
            "tokens_per_s_max": tokens / min(seconds),
            "prefill_and_one_token_s": statistics.median(prefill[who]),
            "decode_tokens_per_s": (tokens - case.prompts * case.group_size)
            / max(median - statistics.median(prefill[who]), 1e-9),
            "peak_mb": peak[who],
        }
    return found


def _operations(case: Case, config: QwenConfig, lengths) -> float:
    """Floating-point operations that no implementation can do without: each prompt once, the head where it samples."""
    c = config
    heads = c.head_dim * (c.num_heads * 2 + c.num_kv_heads * 2)
    layers = c.num_layers * c.hidden_size * (heads + 3 * c.intermediate_size)
    attention = c.num_layers * 4 * c.num_heads * c.head_dim  # per query and key
    S = case.prompt_length
    total = case.prompts * (2 * layers * S + attention * S * S / 2)
    for length in np.ravel(lengths):
        total += length * (2 * layers + 2 * c.hidden_size * c.vocab_size) + attention * length * (S + length / 2)
    return float(total)


def _matmul_gflops(size: int = 2048) -> float:
    """Speed of a large float32 matrix product here and now."""
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    product(x, x).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9
