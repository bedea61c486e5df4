"""`thoth bench rollout`: the engine beside other samplers, on the same weights, interleaved, a process each."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from thoth_jax.bench.contenders import TINY, Contender, environment_of, machine, pythons_of
from thoth_jax.models import hf
from thoth_jax.models.qwen import QwenConfig, init_params

_SERVE = "serve.py"


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
    pythons = pythons_of(peers)
    result: dict[str, Any] = {
        "config": {"repeats": repeats, "seed": seed, "allocator": allocator, "group_size": 8},
        **machine(),
        "cases": {},
    }
    environment = environment_of(allocator)
    with tempfile.TemporaryDirectory() as model:
        hf.save(model, config, init_params(config, jax.random.key(seed)), None)
        for name in cases:
            found = _measure(CASES[name], pythons, model, repeats, seed, environment, config)
            floor = _operations(CASES[name], config, found.pop("lengths")) / result["matmul_gflops"] / 1e9
            rates = {who: row["tokens_per_s"] for who, row in found.items() if "tokens_per_s" in row}
            others = [rate for who, rate in rates.items() if who != "thoth"]
            result["cases"][name] = {"case": CASES[name]._asdict(), **found, "floor_s": floor}
            if "thoth" in rates:
                result["cases"][name]["share_of_floor"] = floor / found["thoth"]["wall_s"]
                if others:
                    result["cases"][name]["times_the_best_peer"] = rates["thoth"] / max(others)
    return result


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
            contender = Contender(_SERVE, who, python, model, str(case.prompt_length + case.longest), environment)
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
