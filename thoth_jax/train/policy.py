"""Stage rl: sample groups of answers, reward them with verifiable rewards, update the policy (GRPO)."""

import dataclasses
import functools
import logging
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.config_presets import PRESETS
from thoth_jax.errors import InputError
from thoth_jax.models import hidden_states, token_logprobs
from thoth_jax.rewards.compose import check_specs, compose
from thoth_jax.rewards.scorer import Scorer
from thoth_jax.rl.advantages import group_advantages, has_spread
from thoth_jax.rl.formula import formula
from thoth_jax.rl.metrics import combine_metrics, mean_metrics
from thoth_jax.rl.objectives import loss_weight, policy_loss
from thoth_jax.rl.shaping import kl_in_reward, mask_truncated, overlong_penalty, rollout_metrics, rollout_weights
from thoth_jax.rollout import Engine, Sampling
from thoth_jax.sharding import fetch
from thoth_jax.task import Rewards, check_gold
from thoth_jax.train.build import Run
from thoth_jax.train.groups import GroupSource, RewardedGroup
from thoth_jax.train.optimizer import learning_rate_schedule, make_optimizer
from thoth_jax.train.sampling import Answerer, completion_metrics, length_metrics, prompts_of, sample_rows
from thoth_jax.train.state import TrainState, apply_update, microbatches, place, summed_gradient

logger = logging.getLogger(__name__)


def completion_logprobs(params, lora, model, batch, *, temperature: float, chunk_size: int, with_entropy: bool = False):
    """Log-probabilities (and entropy) of the tokens of rows [b, T] under the sampling temperature, [b, T] each."""
    hidden = hidden_states(params, model, batch["tokens"], batch["positions"], batch["segment_ids"], lora)
    return token_logprobs(
        params,
        model,
        hidden,
        batch["targets"],
        temperature=temperature,
        chunk_size=chunk_size,
        with_entropy=with_entropy,
        lora=lora,
    )


class RlStage:
    """GRPO on the examples of a Task.

    The reference policy is what the run started from: the base with the adapter off, or a frozen copy of the full
    parameters, which exists only where kl_coef is not 0.

    batch: arrays of the newest step, on the host.
    """

    batch: dict[str, np.ndarray]

    def __init__(self, run: Run):
        self._run = run
        config = self.config = run.config
        self._rewards = check_specs(config.rewards)
        checked = functools.partial(check_gold, run.task)
        scored = not self._rewards or any(part.function is None for part in self._rewards)
        encoded = prompts_of(run, "train", config.train_examples, checked if scored else None)
        self._examples, self._prompts = encoded.examples, encoded.prompts
        held_out = prompts_of(run, "eval", config.eval_examples, checked)
        self._longest = max(map(len, self._prompts))
        self.num_steps = config.num_steps or max(
            1, math.ceil(config.num_epochs * len(self._prompts) / config.prompts_per_step)
        )
        self._prompts_per_update = config.prompts_per_update or config.prompts_per_step
        self.updates_per_step = config.num_iterations * (config.prompts_per_step // self._prompts_per_update)
        updates = self.num_steps * self.updates_per_step
        self.optimizer = make_optimizer(config, updates)
        self._schedule = learning_rate_schedule(config, updates)
        self._sampling = Sampling(
            config.temperature, max_tokens=config.max_completion_length, stop_ids=run.tokenizer.stop_ids
        )
        self._engine = Engine(
            run.model,
            run.mesh,
            max_prompt_length=self._longest,
            max_completion_length=config.max_completion_length,
            slots=config.slots or config.prompts_per_step * config.group_size,
        )
        self._source = GroupSource(run, self._prompts, self._examples, self._rewards, self._engine, self._sampling)
        self._eval_examples = held_out.examples
        self._answer = Answerer(run, held_out.prompts, config.max_prompt_length)
        self._reference = None
        if (config.kl_coef or config.kl_in_reward) and run.lora is None:
            self._reference = jax.tree.map(jnp.copy, run.params)
        logprobs = functools.partial(
            completion_logprobs, model=run.model, temperature=config.temperature, chunk_size=config.loss_chunk_size
        )
        # The micro-batch is chosen inside: slicing outside would compile a program for every array.
        self._logprobs = jax.jit(
            lambda params, lora, micro, number: logprobs(params, lora, batch=jax.tree.map(lambda x: x[number], micro))[
                0
            ]
        )
        self._update = jax.jit(
            functools.partial(_update, model=run.model, optimizer=self.optimizer, options=self._options()),
            donate_argnums=0,
        )

    def _options(self) -> dict:
        c = self.config
        loss = (
            "epsilon_low",
            "epsilon_high",
            "dual_clip",
            "level",
            "aggregation",
            "constant",
            "kl_coef",
            "kl_estimator",
            "kl_clamp",
            "entropy_coef",
        )
        correction = None if c.rollout_correction.level == "none" else c.rollout_correction.to_dict()
        return {
            "temperature": c.temperature,
            "chunk_size": c.loss_chunk_size,
            "correction": correction,
            "loss": {name: c[name] for name in loss},
        }

    def describe(self) -> str:
        """Shapes and objective, for --dry-run."""
        c = self.config
        options = {**self._options()["loss"], "scale_rewards": c.scale_rewards, "baseline": c.baseline}
        options["kl_in_reward"] = c.kl_in_reward
        options |= {"mask_truncated": c.mask_truncated, "temperature": c.temperature}
        options |= {"overlong": (c.overlong.buffer, c.overlong.penalty), "num_iterations": self.updates_per_step}
        options["max_completion_length"] = c.max_completion_length
        if correction := self._options()["correction"]:
            options["rollout_correction"] = tuple(correction[name] for name in ("level", "cap", "mode"))
        rows = c.prompts_per_step * c.group_size
        drawn = ""
        if c.dynamic_sampling.max_rounds:
            drawn = (
                f"\ndynamic sampling: prompts whose samples do not differ in {c.dynamic_sampling.filter!r} are "
                f"replaced, in at most {c.dynamic_sampling.max_rounds} rounds"
            )
        size = self._prompts_per_update * c.group_size
        if c.preset != "none":
            own = ", ".join(PRESETS[c.preset])
            drawn += f"\npreset: {c.preset} (sets {own}, where you do not)"
        return (
            f"objective: {formula(**options)}\n"
            f"rollouts: {c.prompts_per_step} prompts x {c.group_size} samples, "
            f"prompts up to {self._longest} tokens, answers up to {c.max_completion_length}{drawn}\n"
            f"update: {c.num_iterations} x {rows // size} x {size} rows, {self.num_steps} steps over "
            f"{len(self._prompts)} prompts"
        )

    def position(self) -> dict:
        """What a checkpoint keeps of the sampling, see `GroupSource`."""
        return self._source.position()

    def resume(self, position: dict | None, step: int) -> None:
        """Go on with the sampling where a checkpoint of rollout step `step` left off."""
        self._source.resume(position, step)

    def step(self, state: TrainState, index: int, should_stop) -> tuple[TrainState, dict] | None:
        """Rollout step `index` (from 0); None if `should_stop` came true while sampling (the state is unchanged)."""
        config, started = self.config, time.perf_counter()
        draw = self._source.draw(state, index, should_stop)
        if draw is None:
            return None
        rollout_time = time.perf_counter() - started
        rewards, shape = _joined(draw.groups), (config.prompts_per_step, config.group_size)
        batch = self.batch = self._batch(draw.groups, index, rewards.valid)
        parts = self._parts(batch)
        penalty = self._kl_penalty(state, parts, batch["loss_mask"])
        shaped = rewards.total - penalty + self._overlong(draw.groups)
        advantages = _advantages(
            shaped.reshape(shape),
            scale_rewards=config.scale_rewards,
            baseline=config.baseline,
            valid=rewards.valid.reshape(shape),
        )
        batch["advantages"] = np.where(batch["loss_mask"], np.asarray(advantages).reshape(-1, 1), 0.0).astype(
            np.float32
        )
        state, metrics = self._train(state, batch, parts, index)
        self._source.commit(draw)
        if config.kl_in_reward:
            metrics["rewards/kl_penalty"] = _mean(penalty, rewards.valid)
        if config.overlong.buffer:
            metrics["rewards/overlong"] = _mean(self._overlong(draw.groups), rewards.valid)
        metrics.update(self._reward_metrics(rewards, shape))
        metrics.update(
            length_metrics(
                np.concatenate([group.samples.lengths for group in draw.groups]),
                [reason for group in draw.groups for reason in group.samples.finish_reason],
            )
        )
        metrics.update(draw.metrics)
        metrics.update(
            {
                "step_time/rollout": rollout_time,
                "step_time/reward": draw.waited,
                "step_time/update": time.perf_counter() - started - rollout_time,
                "tokens": int(batch["loss_mask"].sum()),
                "compile/count": self._engine.compilations,
            }
        )
        return state, metrics

    def _overlong(self, groups: list[RewardedGroup]) -> np.ndarray:
        """[B] what overlong.* adds to the rewards; 0 where it is off."""
        config = self.config
        lengths = np.concatenate([group.samples.lengths for group in groups])
        if not config.overlong.buffer:
            return np.zeros(len(lengths), np.float32)
        return np.asarray(
            overlong_penalty(
                lengths,
                max_length=config.max_completion_length,
                buffer=config.overlong.buffer,
                penalty=config.overlong.penalty,
            )
        )

    def _batch(self, groups: list[RewardedGroup], index: int, valid) -> dict[str, np.ndarray]:
        """Rows of prompt + answer, cut to one of a few lengths, with what the loss needs but the advantages."""
        config = self.config
        rows = [(group, self._prompts[group.prompt], g) for group in groups for g in range(config.group_size)]
        longest = max(len(prompt) + int(group.samples.lengths[g]) - 1 for group, prompt, g in rows)
        length = _bucket(longest, self._longest + config.max_completion_length)
        shape = (len(rows), length)
        batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
        batch["loss_mask"] = np.zeros(shape, bool)
        batch["logp_rollout"] = np.zeros(shape, np.float32)
        batch["stale"] = np.zeros(shape, bool)
        truncated = np.zeros(len(rows), bool)
        for row, (group, prompt, g) in enumerate(rows):
            samples, answer_length = group.samples, int(group.samples.lengths[g])
            ids = np.concatenate([np.asarray(prompt, np.int32), samples.tokens[g][:answer_length]])
            width, answer = len(ids) - 1, slice(len(prompt) - 1, len(ids) - 1)
            batch["tokens"][row, :width], batch["targets"][row, :width] = ids[:-1], ids[1:]
            batch["segment_ids"][row, :width], batch["positions"][row, :width] = 1, np.arange(width)
            batch["loss_mask"][row, answer] = valid[row]
            batch["logp_rollout"][row, answer] = samples.logprobs[g][:answer_length]
            batch["stale"][row] = group.step < index
            truncated[row] = samples.finish_reason[g] == "length"
        if config.mask_truncated:
            batch["loss_mask"] = np.asarray(mask_truncated(batch["loss_mask"], truncated))
        return batch

    def _parts(self, batch: dict[str, np.ndarray]) -> list[dict[str, jax.Array]]:
        """The micro-batches of each update of an iteration, on the mesh."""
        size = self._prompts_per_update * self.config.group_size
        rows = len(batch["tokens"])
        return [
            self._placed({name: value[start : start + size] for name, value in batch.items()})
            for start in range(0, rows, size)
        ]

    def _placed(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        cut = microbatches(batch, self.config.tokens_per_microbatch, self._run.batch_shards)
        return place(cut, self._run.mesh)

    def _kl_penalty(self, state: TrainState, parts, mask: np.ndarray) -> np.ndarray:
        """What kl_in_reward takes off the reward of each row [B]; the parts get the logprobs of other policies.

        These are taken before the first update: of the policy that sampled, for the ratio, where there is more than
        one update or a row was sampled by an earlier policy, and of the reference.
        """
        config, found = self.config, []
        for micro in parts:
            if self.updates_per_step > 1 or config.kl_in_reward or config.dynamic_sampling.max_rounds:
                own = self._each(micro, state.params, state.lora)
                micro["logp_old"] = jnp.where(micro["stale"], micro["logp_rollout"], own)
            if config.kl_coef or config.kl_in_reward:
                # The base with the adapter off, or the frozen copy of a full-parameter run.
                micro["logp_ref"] = self._each(
                    micro, state.params if self._reference is None else self._reference, None
                )
            if config.kl_in_reward:
                pair = fetch((micro["logp_old"], micro["logp_ref"]))
                rows = self._prompts_per_update * config.group_size
                found.append([np.asarray(part).reshape(-1, mask.shape[1])[:rows] for part in pair])
        if not config.kl_in_reward:
            return np.zeros(len(mask), np.float32)
        old, ref = (np.concatenate(column) for column in zip(*found, strict=True))
        return -np.asarray(kl_in_reward(np.zeros(len(mask), np.float32), old, ref, mask, coef=config.kl_in_reward))

    def _train(self, state: TrainState, batch, parts, index: int):
        """All updates of a step: the metrics of the last iteration, over all of its updates."""
        config = self.config
        for micro, own in zip(
            parts, self._parts({name: batch[name] for name in ("tokens", "advantages")}), strict=True
        ):
            micro["advantages"] = own["advantages"]
            del micro["stale"]
        for _ in range(config.num_iterations):
            found, norms = [], []
            for micro in parts:
                state, metrics, norm = self._update(state, micro)
                found.append(metrics)
                norms.append(norm)
        metrics = {name: float(value) for name, value in _means(found).items()}
        update = (index + 1) * self.updates_per_step - 1
        return state, {**metrics, "grad_norm": float(max(norms)), "lr": float(self._schedule(update))}

    def _each(self, micro, params, lora):
        """Log-probabilities [M, b, T] of all micro-batches."""
        read = {name: micro[name] for name in ("tokens", "targets", "segment_ids", "positions")}
        return jnp.stack([self._logprobs(params, lora, read, number) for number in range(len(micro["tokens"]))])

    def _reward_metrics(self, rewards: Rewards, shape) -> dict:
        valid = rewards.valid
        # A part is averaged wherever it has a value, also in rows that another part made invalid.
        metrics = {f"rewards/{name}": _mean(values, True) for name, values in rewards.parts.items()}
        metrics["rewards/mean"] = _mean(rewards.total, valid)
        metrics["rewards/std"] = float(np.std(rewards.total[valid])) if valid.any() else float("nan")
        metrics["rewards/invalid"] = int((~valid).sum())
        if not valid.any():
            logger.warning("no sample of this step got a valid reward: nothing is learnt from it")
        spread = np.asarray(has_spread(rewards.total.reshape(shape), valid.reshape(shape)))
        metrics["groups/zero_std_frac"] = float(1.0 - spread.mean())
        return metrics

    def evaluate(self, state: TrainState, should_stop) -> tuple[dict, list[dict]] | None:
        """Greedy answers to the evaluation items: the Task's metrics and the rewards that training uses.

        Returns:
          (metrics, sample rows), or None if `should_stop` came true.
        """
        completions = self._answer(state.params, state.lora, should_stop)
        if completions is None:
            return None
        scorer, groups = Scorer(self.config.reward_timeout), -(-len(completions) // self.config.group_size)
        job = scorer.submit(
            compose, self._run.task, self._rewards, self._eval_examples, completions, times=max(1, groups)
        )
        try:
            rewards = scorer.result(job)
        except TimeoutError:
            raise InputError(
                f"the rewards of the evaluation took more than reward_timeout={self.config.reward_timeout:g} seconds "
                f"for each {self.config.group_size} answers"
            ) from None
        finally:
            scorer.close()
        metrics = dict(self._run.task.evaluate(self._eval_examples, completions))
        metrics["rewards/mean"] = _mean(rewards.total, rewards.valid)
        metrics.update({f"rewards/{name}": _mean(values, True) for name, values in rewards.parts.items()})
        metrics.update(completion_metrics(completions))
        rows = sample_rows(self._run.task, self._eval_examples, completions)
        for number, row in enumerate(rows):
            row["reward"] = float(rewards.total[number]) if rewards.valid[number] else None
            row["parts"] = {name: float(values[number]) for name, values in rewards.parts.items()}
        return metrics, rows


def _joined(groups: list[RewardedGroup]) -> Rewards:
    """Rewards of several groups as one, in order; those of groups that only fill a place are not valid."""
    results = [dataclasses.replace(group.rewards, valid=group.rewards.valid & group.kept) for group in groups]
    names = list(dict.fromkeys(name for r in results for name in r.parts))

    def part(name):
        """A group whose rewards took too long has no parts."""
        return np.concatenate([r.parts.get(name, np.full(len(r.total), np.nan, np.float32)) for r in results])

    return Rewards(
        total=np.concatenate([r.total for r in results]),
        parts={name: part(name) for name in names},
        valid=np.concatenate([r.valid for r in results]),
        raw=np.concatenate([r.raw for r in results]),
    )


def _mean(values, valid) -> float:
    """Mean of the finite values [B] where `valid` ([B] or True); NaN where there is none."""
    values = np.asarray(values, np.float64)
    counted = valid & np.isfinite(values)
    return float(values[counted].mean()) if counted.any() else float("nan")


def _bucket(length: int, limit: int) -> int:
    """The smallest of a quarter, half, three quarters or all of `limit` that holds `length`: at most four shapes."""
    quarter = -(-limit // 4)
    return min(-(-length // quarter) * quarter, limit)


_advantages = jax.jit(group_advantages, static_argnames=("scale_rewards", "baseline"))


@jax.jit
def _means(found: list[dict]) -> dict:
    """Metrics of several updates as one."""
    return mean_metrics(functools.reduce(combine_metrics, found))


def _update(state: TrainState, batch, *, model, optimizer, options):
    loss_options = options["loss"]

    def loss_fn(trainable, micro):
        own = state.with_trainable(trainable)
        logp, entropy = completion_logprobs(
            own.params,
            own.lora,
            model,
            micro,
            temperature=options["temperature"],
            chunk_size=options["chunk_size"],
            with_entropy=True,
        )
        old = micro["logp_old"] if "logp_old" in micro else jax.lax.stop_gradient(logp)
        weights = None
        if options["correction"]:
            weights = rollout_weights(old, micro["logp_rollout"], micro["loss_mask"], **options["correction"])
        loss, _, metrics = policy_loss(
            logp,
            old,
            micro["advantages"],
            micro["loss_mask"],
            logp_ref=micro.get("logp_ref"),
            entropy=entropy,
            rollout_weights=weights,
            **loss_options,
        )
        metrics.update(rollout_metrics(old, micro["logp_rollout"], micro["loss_mask"], weights))
        return loss, metrics

    gradient, metrics = summed_gradient(loss_fn, state.trainable, batch)
    rows = batch["loss_mask"].reshape(-1, batch["loss_mask"].shape[-1])
    weight = loss_weight(rows, aggregation=loss_options["aggregation"], constant=loss_options["constant"])
    # A step without one valid sample has weight 0 and gradient 0: the update must not be NaN.
    state, norm = apply_update(state, gradient, jnp.maximum(weight, 1.0), optimizer)
    return state, metrics, norm
