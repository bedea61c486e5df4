"""`thoth bench score`: text to reward, beside the published evaluator's algorithm in plain Python."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from thoth_jax.bench import evaluator
from thoth_jax.bench.answers import make_batch
from thoth_jax.evaluation.structured import structured_metrics
from thoth_jax.protocol import grammar
from thoth_jax.protocol.columns import columns_of
from thoth_jax.protocol.scan import read_answers
from thoth_jax.rewards import ScoreConfig, coverage, encoding, kernels, score_batch
from thoth_jax.rewards.score import options_of

_GROUP = 8
_LONG_PROMPTS, _LONG_WORDS = 640, 400  # 5,120 answers of about 600 tokens
_LONG_REPEATS, _LONG_TRIES = 5, 40


def bench_score(pairs: int = 1024, repeats: int = 7, seed: int = 0) -> dict[str, Any]:
    """Time both on the same answers, one after the other, with fresh text in every repeat.

    Returns:
      Medians in seconds, wall and CPU of the process, rates in pairs per second, and ratios to the peer. The peer reads
      key blocks only; `score_batch` reads whole answers: four blocks, both gates, and SCORE.

    Raises:
      AssertionError: the peer and our structured metrics disagree on these answers.
    """
    prompts = max(1, pairs // _GROUP)
    batches = [make_batch(seed * 1000 + number, prompts, _GROUP) for number in range(repeats + 1)]
    _check(batches[0])
    contenders: dict[str, Callable] = {
        "evaluator": lambda b: [
            evaluator.compare(evaluator.parse(one), evaluator.parse(other))
            for one, other in zip(b.output_keys, b.gold_keys, strict=True)
        ],
        "evaluator_golds_once": _evaluator_golds_once,
        "structured_metrics": lambda b: structured_metrics(b.output_keys, b.gold_keys),
        "score_batch": lambda b: score_batch(b.outputs, b.golds),
    }
    for run in contenders.values():
        run(batches[-1])  # compiles, fills the stem table
    times: dict[str, list] = {name: [] for name in contenders}
    for batch in batches[:-1]:
        for name, run in contenders.items():
            times[name].append(_timed(run, batch))
    size = len(batches[0].outputs)
    result: dict[str, Any] = {
        "pairs": size,
        "group_size": _GROUP,
        "repeats": repeats,
        "seed": seed,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
        "words_per_answer": statistics.mean(len(text.split()) for text in batches[0].outputs),
    }
    for name, values in times.items():
        result[name] = _summary(values, size)
    result["kernel"] = _kernel(batches, size)
    result["long"] = _long(seed)
    result["times_the_evaluator"] = {
        "wall": result["evaluator"]["wall_s"] / result["score_batch"]["wall_s"],
        "cpu": result["evaluator"]["cpu_s"] / result["score_batch"]["cpu_s"],
        "structured_wall": result["evaluator"]["wall_s"] / result["structured_metrics"]["wall_s"],
    }
    return result


def _evaluator_golds_once(batch) -> list:
    golds = {key: evaluator.parse(key) for key in dict.fromkeys(batch.gold_keys)}
    return [
        evaluator.compare(evaluator.parse(one), golds[other])
        for one, other in zip(batch.output_keys, batch.gold_keys, strict=True)
    ]


def _long(seed: int) -> dict[str, float]:
    """5,120 long answers, text to reward: calls whose shapes are compiled already; the programs are counted."""
    times, compiled, batch = [], 0, None
    for number in range(_LONG_TRIES):
        batch = make_batch(seed * 1000 + 500 + number, _LONG_PROMPTS, _GROUP, _LONG_WORDS)
        before = kernels.pair_scores._cache_size()
        time_of_call = _timed(lambda b: score_batch(b.outputs, b.golds), batch)
        added = kernels.pair_scores._cache_size() - before
        compiled += added
        times += [] if added else [time_of_call]
        if len(times) == _LONG_REPEATS:
            break
    words = statistics.mean(len(text.split()) for text in batch.outputs)
    return _summary(times, len(batch.outputs)) | {"words_per_answer": words, "compiled": compiled}


def _kernel(batches, size: int) -> dict[str, float]:
    """The device half alone: arrays that are encoded already to scores."""
    batch = batches[0]
    golds = {text: number for number, text in enumerate(dict.fromkeys(batch.golds))}
    calls = encoding.encode(
        read_answers(batch.outputs).columns,
        columns_of([grammar.parse_gold(text).steps for text in golds]),
        np.array([golds[text] for text in batch.golds]),
        coverage.canonical_all,
    )
    config = ScoreConfig()
    arrays = jax.device_put([(call.predicted, call.gold, call.gold_row) for call in calls])

    def run(_):
        return jax.block_until_ready(
            [kernels.pair_scores(*call, options_of(config), config.alignment) for call in arrays]
        )

    return _summary([_timed(run, None) for _ in range(len(batches))][1:], size)


def _timed(run: Callable, batch) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run(batch)
    return time.perf_counter() - wall, time.process_time() - cpu


def _summary(times, size: int) -> dict[str, float]:
    wall = statistics.median(value for value, _ in times)
    return {
        "wall_s": wall,
        "wall_min_s": min(value for value, _ in times),
        "wall_max_s": max(value for value, _ in times),
        "cpu_s": statistics.median(value for _, value in times),
        "pairs_per_s": size / wall,
    }


def _check(batch) -> None:
    ours = structured_metrics(batch.output_keys, batch.gold_keys)
    theirs = [
        evaluator.compare(evaluator.parse(one), evaluator.parse(other))
        for one, other in zip(batch.output_keys, batch.gold_keys, strict=True)
    ]
    for name in theirs[0]:
        if not np.allclose(ours[name], [row[name] for row in theirs], atol=1e-5):
            raise AssertionError(f"{name} differs from the evaluator's")
