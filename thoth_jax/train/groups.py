"""Where the groups of a step come from: prompts in order, sampled, rewarded, and with dynamic sampling filtered."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from thoth_jax.data.order import EpochOrder
from thoth_jax.errors import InputError, nearest
from thoth_jax.rewards.compose import compose
from thoth_jax.rewards.scorer import Job, Scorer
from thoth_jax.rl.shaping import keep_group
from thoth_jax.rollout import Engine, Group, Sampling
from thoth_jax.sharding import agreed
from thoth_jax.task import Example, Rewards
from thoth_jax.train.sampling import completion_of

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RewardedGroup:
    """The G samples of one prompt with their rewards.

    prompt: its number in the list of prompts. step: the rollout step (from 0) whose policy sampled it.
    kept: False where it only fills a place that dynamic sampling left empty: nothing is learnt from it.
    """

    prompt: int
    step: int
    samples: Group
    rewards: Rewards
    kept: bool = True


@dataclasses.dataclass(frozen=True)
class Draw:
    """The groups of a step, seconds of waiting for rewards, metrics of the sampling, and what is left for later."""

    groups: list[RewardedGroup]
    waited: float
    metrics: dict[str, float]
    position: int
    pool: list[RewardedGroup]


class GroupSource:
    """Draws the groups of each step; what it draws next is saved and restored with a run.

    Without dynamic sampling a step has the next P prompts. With it (DAPO, arXiv 2503.14476, section 3.2) prompts whose
    samples do not differ in their raw reward, from which nothing can be learnt, are replaced: P prompts are sampled at
    a time until P groups are kept, at most `max_rounds` times. Groups beyond P wait for the next step. Places that
    stay empty are filled with rejected groups that count in no loss.
    """

    def __init__(
        self,
        run,
        prompts: Sequence[list[int]],
        examples: Sequence[Example],
        rewards,
        engine: Engine,
        sampling: Sampling,
    ):
        self._run, self._config = run, run.config
        self._prompts, self._examples, self._rewards = prompts, examples, rewards
        self._engine, self._sampling = engine, sampling
        self._order = EpochOrder(len(prompts), run.config.seed)
        self._position = 0  # prompts drawn so far
        self._pool: list[RewardedGroup] = []

    def draw(self, state, index: int, should_stop: Callable[[], bool]) -> Draw | None:
        """The groups of rollout step `index`; None if `should_stop` came true.

        Nothing counts as drawn before `commit`, so that a step that fails can be done again.
        """
        config, wanted = self._config, self._config.prompts_per_step
        limit = config.dynamic_sampling.max_rounds
        position, kept, rejected = self._position, list(self._pool), []
        rounds = sampled = 0
        waited = 0.0
        while len(kept) < wanted and rounds < max(1, limit):
            found = self._sample(state, self._order.take(position, wanted), index, rounds, should_stop)
            if found is None:
                return None
            position, rounds, sampled, waited = position + wanted, rounds + 1, sampled + wanted, waited + found[1]
            for group in found[0]:
                (kept if not limit or self._informative(group) else rejected).append(group)
        missing = max(0, wanted - len(kept))
        if missing:
            logger.warning(
                "step %d: %d of %d prompts after %d rounds of dynamic sampling; the step goes on with them",
                index + 1,
                wanted - missing,
                wanted,
                rounds,
            )
        fill = [dataclasses.replace(group, kept=False) for group in rejected[:missing]]
        groups = kept[:wanted] + fill
        metrics = {}
        if limit:
            metrics["sampling/rounds"] = rounds
            metrics["sampling/kept_frac"] = 1.0 - len(rejected) / sampled if sampled else 1.0
            metrics["sampling/stale_frac"] = float(np.mean([group.step < index for group in groups]))
            metrics["sampling/missing"] = missing
        return Draw(groups, waited, metrics, position, kept[wanted:])

    def commit(self, draw: Draw) -> None:
        """The step with these groups is done."""
        self._position, self._pool = draw.position, draw.pool

    def _informative(self, group: RewardedGroup) -> bool:
        name, rewards = self._config.dynamic_sampling.filter, group.rewards
        if name != "raw" and name not in rewards.parts and rewards.valid.any():
            raise InputError(
                f"dynamic_sampling.filter={name!r}: the rewards have no such part"
                f"{nearest(name, ['raw', *rewards.parts])}"
            )
        values = rewards.raw if name == "raw" or name not in rewards.parts else rewards.parts[name]
        return bool(np.asarray(keep_group(np.asarray(values)[None], np.asarray(rewards.valid)[None]))[0])

    def _sample(self, state, chosen: Sequence[int], index: int, number: int, should_stop):
        """(groups in the order of `chosen`, seconds waited); rewards are computed while the device samples on."""
        config, size = self._config, self._config.group_size
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 2), index)
        if number:
            key = jax.random.fold_in(key, number)
        prompts = [self._prompts[i] for i in chosen]
        stream = self._engine.stream(
            state.params, prompts, size, self._sampling, key, lora=state.lora, should_stop=should_stop
        )
        groups, scored = {}, {}
        scorer = Scorer(config.reward_timeout)
        try:
            for group in stream:
                groups[group.index] = group
                completions = [
                    completion_of(self._run.tokenizer, group.tokens[g][: group.lengths[g]], group.finish_reason[g])
                    for g in range(size)
                ]
                examples = [self._examples[chosen[group.index]]] * size
                scored[group.index] = scorer.submit(compose, self._run.task, self._rewards, examples, completions)
            if len(groups) < len(prompts):
                return None
            waiting = time.perf_counter()
            rewards = [self._result(scorer, scored[p], self._examples[chosen[p]]) for p in range(len(prompts))]
            waited = time.perf_counter() - waiting
        finally:
            scorer.close()
        # Of several processes all go on with the numbers of the first.
        plain = [{"total": r.total, "valid": r.valid, "raw": r.raw, "parts": dict(r.parts)} for r in rewards]
        rewards = [dataclasses.replace(r, **same) for r, same in zip(rewards, agreed(plain), strict=True)]
        return [
            RewardedGroup(prompt, index, groups[p], rewards[p]) for p, prompt in enumerate(map(int, chosen))
        ], waited

    def _result(self, scorer: Scorer, job: Job, example: Example) -> Rewards:
        """Rewards of a group; none of them valid where they took too long."""
        try:
            return scorer.result(job)
        except TimeoutError:
            logger.warning(
                "the rewards of example %r took more than reward_timeout=%g seconds: its samples are left out",
                example.id,
                self._config.reward_timeout,
            )
            nothing = np.zeros(self._config.group_size, np.float32)
            return Rewards(nothing, {}, nothing.astype(bool), nothing)

    def position(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON: prompts drawn so far, and the groups that wait for the next step."""
        return {"drawn": self._position, "pool": [_to_json(group) for group in self._pool]}

    def resume(self, position: dict[str, Any] | None, step: int) -> None:
        """Go on from `position`; None (a checkpoint without one): from rollout step `step`."""
        if position is None:
            position = {"drawn": step * self._config.prompts_per_step, "pool": []}
        self._position = position["drawn"]
        self._pool = [_from_json(row, self._config.max_completion_length) for row in position["pool"]]


def _to_json(group: RewardedGroup) -> dict[str, Any]:
    samples, rewards = group.samples, group.rewards
    lengths = samples.lengths.tolist()
    return {
        "prompt": group.prompt,
        "step": group.step,
        "tokens": [row[:length].tolist() for row, length in zip(samples.tokens, lengths, strict=True)],
        "logprobs": [row[:length].tolist() for row, length in zip(samples.logprobs, lengths, strict=True)],
        "finish_reason": list(samples.finish_reason),
        "total": np.asarray(rewards.total).tolist(),
        "raw": np.asarray(rewards.raw).tolist(),
        "valid": np.asarray(rewards.valid).tolist(),
        "parts": {name: np.asarray(values).tolist() for name, values in rewards.parts.items()},
    }


def _from_json(row: dict[str, Any], length: int) -> RewardedGroup:
    lengths = np.array([len(tokens) for tokens in row["tokens"]], np.int32)

    def padded(rows, dtype):
        out = np.zeros((len(rows), length), dtype)
        for number, values in enumerate(rows):
            out[number, : len(values)] = values
        return out

    samples = Group(
        index=0,
        tokens=padded(row["tokens"], np.int32),
        lengths=lengths,
        logprobs=padded(row["logprobs"], np.float32),
        finish_reason=tuple(row["finish_reason"]),
    )
    rewards = Rewards(
        total=np.array(row["total"], np.float32),
        parts={name: np.array(values, np.float32) for name, values in row["parts"].items()},
        valid=np.array(row["valid"], bool),
        raw=np.array(row["raw"], np.float32),
    )
    return RewardedGroup(row["prompt"], row["step"], samples, rewards)
