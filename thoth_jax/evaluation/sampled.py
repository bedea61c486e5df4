"""A policy judged on held-out items: sampled at a temperature and greedily, with intervals over clusters of items."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from thoth_jax.errors import InputError
from thoth_jax.evaluation.intervals import bootstrap_mean, paired_difference
from thoth_jax.rollout import Engine, Sampling
from thoth_jax.sharding import use_mesh
from thoth_jax.train.sampling import completion_of, prompts_of, sample_rows

GREEDY = "score_greedy"


@dataclasses.dataclass(frozen=True)
class Judged:
    """The metrics of N items.

    ids: [N]. clusters: [N], items with the same are not independent (of one protocol).
    metrics: {name: float64 [N]}, an item's mean over its samples; "score_greedy" is the score of its greedy answer.
    rows: some greedy answers for people to read, as `train.sampling.sample_rows`.
    """

    ids: tuple[str, ...]
    clusters: tuple[str, ...]
    metrics: Mapping[str, np.ndarray]
    rows: tuple[dict, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain lists, which `from_json` takes back."""
        metrics = {name: np.asarray(values).tolist() for name, values in self.metrics.items()}
        return {"ids": list(self.ids), "clusters": list(self.clusters), "metrics": metrics, "rows": list(self.rows)}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Judged":
        """What `to_json` made."""
        metrics = {name: np.asarray(values, np.float64) for name, values in saved["metrics"].items()}
        return cls(tuple(saved["ids"]), tuple(saved["clusters"]), metrics, tuple(saved.get("rows", ())))


def judge_policy(
    run,
    split: str,
    *,
    samples: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
    limit: int = 0,
    shown: int = 2,
    should_stop: Callable[[], bool] = lambda: False,
) -> Judged | None:
    """Judge the weights of a run on the items of a split.

    Each item is answered `samples` times at `temperature` and once greedily, all items in one call of the engine each.
    The noise depends on the seed and the item's number only: two policies are given the same.

    Args:
      run: of `train.build.build`; its Task needs `judge` (see `task.Task`) with a metric "score".
      split: of the Task.
      samples: of an item.
      temperature: of the samples.
      seed: of the samples.
      limit: items, the first ones; 0: all.
      shown: greedy answers that are kept in `rows`, spread over the items.
      should_stop: polled while answers are made.

    Returns:
      Judged, or None if `should_stop` came true.

    Raises:
      InputError: the Task cannot judge single answers; a prompt is too long; no item.
    """
    if not hasattr(run.task, "judge"):
        raise InputError(f"task {run.task.name!r} has no judge(examples, completions), which intervals need")
    config = run.config
    encoded = prompts_of(run, split, limit)
    engine = Engine(
        run.model,
        run.mesh,
        max_prompt_length=max(map(len, encoded.prompts)),
        max_completion_length=config.max_completion_length,
    )

    def answers(count: int, heat: float):
        sampling = Sampling(heat, max_tokens=config.max_completion_length, stop_ids=run.tokenizer.stop_ids)
        key, found = jax.random.key(seed), {}
        stream = engine.stream(
            run.params, encoded.prompts, count, sampling, key, lora=run.lora, should_stop=should_stop
        )
        for group in stream:
            found[group.index] = [
                completion_of(run.tokenizer, group.tokens[row][: group.lengths[row]], group.finish_reason[row])
                for row in range(count)
            ]
        complete = len(found) == len(encoded.prompts)
        return [one for index in range(len(found)) for one in found[index]] if complete else None

    with use_mesh(run.mesh):
        drawn = answers(samples, temperature)
        greedy = None if drawn is None else answers(1, 0.0)
    if greedy is None:
        return None
    examples = encoded.examples
    repeated = [example for example in examples for _ in range(samples)]
    metrics = {
        name: np.asarray(values, np.float64).reshape(len(examples), samples).mean(1)
        for name, values in run.task.judge(repeated, drawn).items()
    }
    metrics[GREEDY] = np.asarray(run.task.judge(examples, greedy)["score"], np.float64)
    cluster = getattr(run.task, "cluster", lambda example: example.id)
    some = np.unique(np.linspace(0, len(examples) - 1, min(shown, len(examples))).astype(int)) if shown else ()
    rows = sample_rows(run.task, [examples[i] for i in some], [greedy[i] for i in some])
    return Judged(tuple(example.id for example in examples), tuple(map(cluster, examples)), metrics, tuple(rows))


def summarise(judged: Judged, **how) -> dict[str, list[float]]:
    """{metric: [mean, low, high]}: bootstrap over the clusters; `how` as in `intervals.bootstrap_mean`."""
    return {name: list(bootstrap_mean(values, judged.clusters, **how)) for name, values in judged.metrics.items()}


def compare(a: Judged, b: Judged, **how) -> dict[str, list[float]]:
    """{metric: [mean of a minus mean of b, low, high]} of the same items: whole clusters are drawn, for both alike.

    Args:
      a, b: two policies on the same items.
      how: as in `intervals.paired_difference`.

    Raises:
      ValueError: the items or their order differ.
    """
    if a.ids != b.ids or a.clusters != b.clusters:
        raise ValueError("the policies were judged on different items")
    return {
        name: list(paired_difference(a.metrics[name], b.metrics[name], a.clusters, **how)[:3])
        for name in a.metrics
        if name in b.metrics
    }
