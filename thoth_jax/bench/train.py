"""`thoth bench train`: a step of the trainer beside other trainers, on the same weights and rows, interleaved."""

import json
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from thoth_jax.bench.contenders import TINY, Contender, environment_of, machine, pythons_of
from thoth_jax.bench.steps import interleave, summary
from thoth_jax.models import hf
from thoth_jax.models.qwen import QwenConfig, init_params

METHODS = {"full": 0, "lora": 8}  # name -> rank of the adapters
_NOTES = (
    "one checkpoint and the same rows for all; float32; AdamW (0.9, 0.95), no weight decay, gradients clipped to 1",
    "a step ends when its loss can be read; all compute rows of `length` tokens and learn length - 1 of them",
    "ours is the step of stage pretrain: row order, segment ids, metrics and the check for finite gradients included",
    "tunix is its jitted step, without the rest of PeftTrainer.train (batches, logging, throttling)",
    "transformers is eager, with fused AdamW and without torch.compile; its products are those of torch's own library",
    "the floor counts causal attention exactly and the head once, at the speed of a 2048 x 2048 product in this run",
)


def bench_train(
    peers: Sequence[str] = (),
    methods: Sequence[str] = tuple(METHODS),
    repeats: int = 7,
    seed: int = 0,
    allocator: str = "keep",
    config: QwenConfig = TINY,
    rows: int = 8,
    length: int = 512,
) -> dict[str, Any]:
    """Time steps of full fine-tuning and of LoRA, contender after contender, after steps that compile.

    Args:
      peers: Python executables of environments with google-tunix or with transformers, peft and torch.
      methods: names of `METHODS`.
      allocator: see `environment_of`.
      rows, length: tokens of a step.

    Returns:
      Per method and contender: seconds of a step (median, smallest, largest), tokens per second, seconds that the first
      step took longer, peak memory of the process, the losses of the first three steps; per method the time that the
      products need at the measured speed of a large one, our share of it, and how many times as fast as each peer ours
      is.

    Raises:
      InputError: see `pythons_of`.
    """
    pythons = pythons_of(peers)
    result: dict[str, Any] = {
        "config": {"repeats": repeats, "seed": seed, "allocator": allocator, "rows": rows, "length": length},
        **machine(),
        "notes": list(_NOTES),
        "methods": {},
    }
    tokens = np.random.default_rng(seed).integers(1, config.vocab_size, (rows, length)).tolist()
    with tempfile.TemporaryDirectory() as model:
        hf.save(model, config, init_params(config, jax.random.key(seed)), None)
        for method in methods:
            settings = {
                "rows": tokens,
                "rank": METHODS[method],
                "alpha": 16.0,
                "learning_rate": 1e-5,
                "max_grad_norm": 1.0,
                "keys": {},
            }
            answers = interleave(
                lambda who, settings=settings: Contender(
                    "update.py", who, pythons[who], model, json.dumps(settings), environment_of(allocator)
                ),
                pythons,
                repeats,
            )
            found = {who: summary(rows_of) for who, rows_of in answers.items()}
            for row in found.values():
                if "step_s" in row:
                    row["tokens_per_s"] = rows * length / row["step_s"]
            floor = _operations(config, rows, length, METHODS[method]) / result["matmul_gflops"] / 1e9
            result["methods"][method] = {**found, "floor_s": floor, **_compared(found, floor)}
    return result


def _compared(found: dict[str, dict], floor: float) -> dict[str, Any]:
    if "step_s" not in found["thoth"]:
        return {}
    ours = found["thoth"]["step_s"]
    others = {who: row["step_s"] / ours for who, row in found.items() if who != "thoth" and "step_s" in row}
    return {"share_of_floor": floor / ours, "times_as_fast_as": others}


def _operations(config: QwenConfig, rows: int, length: int, rank: int) -> float:
    """Floating-point operations that no implementation can do without.

    A weight costs one product forward, one for the gradient of its input and, where it is trained, one for its own.
    """
    c, tokens = config, rows * length
    maps = [
        (c.hidden_size, c.num_heads * c.head_dim),
        (c.hidden_size, c.num_kv_heads * c.head_dim),
        (c.hidden_size, c.num_kv_heads * c.head_dim),
        (c.num_heads * c.head_dim, c.hidden_size),
        (c.hidden_size, c.intermediate_size),
        (c.hidden_size, c.intermediate_size),
        (c.intermediate_size, c.hidden_size),
    ]
    layers = c.num_layers * sum(inputs * outputs for inputs, outputs in maps)
    products = 2 * tokens * (layers + c.hidden_size * c.vocab_size)
    attention = rows * c.num_layers * 4 * c.num_heads * c.head_dim * length * length / 2
    if not rank:
        return 3.0 * (products + attention)
    adapters = 2 * tokens * c.num_layers * rank * sum(map(sum, maps))
    return 2.0 * products + 3.0 * (attention + adapters)
