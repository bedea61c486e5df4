"""Steps of several contenders in turn, and what is told of them."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from thoth_jax.bench.contenders import Contender

_WARM_UP = 3  # the first compiles; libraries' thread pools and allocators settle in the next


def interleave(start: Callable[[str], Contender], names: Iterable[str], repeats: int) -> dict[str, list[dict]]:
    """Answers to requests {}, contender after contender: `_WARM_UP` of each when it starts, then `repeats` rounds.

    Returns:
      Per name: what the contender said first, then its answers; of one that fails only {"error": text}.
    """
    answers: dict[str, list[dict]] = {}
    running: dict[str, Contender] = {}
    try:
        for name in names:
            contender = start(name)
            running[name] = contender
            answers[name] = [contender.hello]
            for _ in range(_WARM_UP):
                if "error" not in answers[name][-1]:
                    answers[name].append(contender.ask({}))
        for _ in range(repeats):
            for name, contender in running.items():
                if "error" not in answers[name][-1]:
                    answers[name].append(contender.ask({}))
                    time.sleep(0.05)
    finally:
        for contender in running.values():
            contender.close()
    return {name: [found[-1]] if "error" in found[-1] else found for name, found in answers.items()}


def summary(answers: list[dict]) -> dict[str, Any]:
    """What one contender's answers come to: "step_s" is the median of the timed steps."""
    if "error" in answers[-1]:
        return {"error": answers[-1]["error"]}
    hello, first, timed = answers[0], answers[1], answers[1 + _WARM_UP :]
    seconds = [row["seconds"] for row in timed]
    found = {
        **hello,
        "step_s": statistics.median(seconds),
        "step_s_min": min(seconds),
        "step_s_max": max(seconds),
        "compile_s": max(0.0, first["seconds"] - statistics.median(seconds)),
        "peak_mb": timed[-1]["peak_mb"],
    }
    if "loss" in first:
        found["first_losses"] = [row["loss"] for row in answers[1:4]]
    if "phases" in first:
        names = timed[0]["phases"]
        found["phases_s"] = {name: statistics.median(row["phases"][name] for row in timed) for name in names}
    return found
