"""Stage rl: sample groups of answers, reward them with verifiable rewards, update the policy (GRPO)."""

import concurrent.futures
import dataclasses
import functools
import logging
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.data.order import EpochOrder
from thoth_jax.models import hidden_states, token_logprobs
from thoth_jax.rewards.compose import check_specs, compose
from thoth_jax.rl.advantages import group_advantages, has_spread
from thoth_jax.rl.formula import formula
from thoth_jax.rl.metrics import mean_metrics
from thoth_jax.rl.objectives import loss_weight, policy_loss
from thoth_jax.rl.shaping import kl_in_reward, mask_truncated, rollout_metrics, rollout_weights
from thoth_jax.rollout import Engine, Sampling
from thoth_jax.sharding import agreed, fetch
from thoth_jax.task import Completion, Rewards, check_gold
from thoth_jax.train.build import Run
from thoth_jax.train.optimizer import learning_rate_schedule, make_optimizer
from thoth_jax.train.sampling import Answerer, completion_metrics, completion_of, prompts_of
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
    """

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
        self._order = EpochOrder(len(self._prompts), config.seed)
        self.num_steps = config.num_steps or max(
            1, math.ceil(config.num_epochs * len(self._prompts) / config.prompts_per_step)
        )
        updates = self.num_steps * config.num_iterations
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
        self._eval_examples = held_out.examples
        self._answer = Answerer(run, held_out.prompts, config.max_prompt_length)
        self._reference = None
        if (config.kl_coef or config.kl_in_reward) and run.lora is None:
            self._reference = jax.tree.map(jnp.copy, run.params)
        logprobs = functools.partial(
            completion_logprobs, model=run.model, temperature=config.temperature, chunk_size=config.loss_chunk_size
        )
        self._logprobs = jax.jit(lambda params, lora, batch: logprobs(params, lora, batch=batch)[0])
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
        if correction := self._options()["correction"]:
            options["rollout_correction"] = tuple(correction[name] for name in ("level", "cap", "mode"))
        rows = c.prompts_per_step * c.group_size
        return (
            f"objective: {formula(**options)}\n"
            f"rollouts: {c.prompts_per_step} prompts x {c.group_size} samples, "
            f"prompts up to {self._longest} tokens, answers up to {c.max_completion_length}\n"
            f"update: {c.num_iterations} x {rows} rows, {self.num_steps} steps over {len(self._prompts)} prompts"
        )

    def step(self, state: TrainState, index: int, should_stop) -> tuple[TrainState, dict] | None:
        """Rollout step `index` (from 0); None if `should_stop` came true while sampling (the state is unchanged)."""
        config, started = self.config, time.perf_counter()
        chosen = self._order.take(index * config.prompts_per_step, config.prompts_per_step)
        sampled = self._rollout(state, chosen, index, should_stop)
        if sampled is None:
            return None
        groups, completions, rewards, waited = sampled
        total, valid = agreed((rewards.total, rewards.valid))
        rewards = dataclasses.replace(rewards, total=total, valid=valid)
        rollout_time = time.perf_counter() - started
        shape = (config.prompts_per_step, config.group_size)
        batch = self._batch(chosen, groups, rewards.valid)
        micro = self._with_logprobs(state, self._placed(batch))
        penalty = self._kl_penalty(micro, batch["loss_mask"])
        advantages = group_advantages(
            (rewards.total - penalty).reshape(shape),
            scale_rewards=config.scale_rewards,
            baseline=config.baseline,
            valid=rewards.valid.reshape(shape),
        )
        advantages = np.where(batch["loss_mask"], np.asarray(advantages).reshape(-1, 1), 0.0).astype(np.float32)
        micro["advantages"] = self._placed({"tokens": batch["tokens"], "advantages": advantages})["advantages"]
        state, metrics = self._train(state, micro, index)
        if config.kl_in_reward:
            metrics["rewards/kl_penalty"] = _mean(penalty, rewards.valid)
        metrics.update(self._reward_metrics(rewards, shape))
        metrics.update(completion_metrics(completions))
        metrics.update(
            {
                "step_time/rollout": rollout_time,
                "step_time/reward": waited,
                "step_time/update": time.perf_counter() - started - rollout_time,
                "tokens": int(batch["loss_mask"].sum()),
                "compile/count": self._engine.compilations,
            }
        )
        return state, metrics

    def _rollout(self, state: TrainState, chosen, index: int, should_stop):
        """Groups in the order of `chosen`, completions, rewards; these are computed while the device samples on."""
        config, task = self.config, self._run.task
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 2), index)
        prompts = [self._prompts[i] for i in chosen]
        stream = self._engine.stream(
            state.params, prompts, config.group_size, self._sampling, key, lora=state.lora, should_stop=should_stop
        )
        groups, scored = {}, {}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for group in stream:
                groups[group.index] = group
                completions = [
                    completion_of(self._run.tokenizer, group.tokens[g][: group.lengths[g]], group.finish_reason[g])
                    for g in range(config.group_size)
                ]
                examples = [self._examples[chosen[group.index]]] * config.group_size
                scored[group.index] = completions, pool.submit(compose, task, self._rewards, examples, completions)
            if len(groups) < len(prompts):
                return None
            waiting = time.perf_counter()
            results = [scored[p][1].result() for p in range(len(prompts))]
            waited = time.perf_counter() - waiting
        completions: list[Completion] = [c for p in range(len(prompts)) for c in scored[p][0]]
        return [groups[p] for p in range(len(prompts))], completions, _joined(results), waited

    def _batch(self, chosen, groups, valid) -> dict[str, np.ndarray]:
        """Rows of prompt + answer, cut to one of a few lengths, with what the loss needs but the advantages."""
        config, rows = self.config, []
        for prompt_index, group in zip(chosen, groups, strict=True):
            prompt = self._prompts[prompt_index]
            rows += [(prompt, group, g) for g in range(config.group_size)]
        longest = max(len(prompt) + int(group.lengths[g]) - 1 for prompt, group, g in rows)
        length = _bucket(longest, self._longest + config.max_completion_length)
        shape = (len(rows), length)
        batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
        batch["loss_mask"] = np.zeros(shape, bool)
        batch["logp_rollout"] = np.zeros(shape, np.float32)
        truncated = np.zeros(len(rows), bool)
        for row, (prompt, group, g) in enumerate(rows):
            answer_length = int(group.lengths[g])
            ids = np.concatenate([np.asarray(prompt, np.int32), group.tokens[g][:answer_length]])
            width, answer = len(ids) - 1, slice(len(prompt) - 1, len(ids) - 1)
            batch["tokens"][row, :width], batch["targets"][row, :width] = ids[:-1], ids[1:]
            batch["segment_ids"][row, :width], batch["positions"][row, :width] = 1, np.arange(width)
            batch["loss_mask"][row, answer] = valid[row]
            batch["logp_rollout"][row, answer] = group.logprobs[g][:answer_length]
            truncated[row] = group.finish_reason[g] == "length"
        if config.mask_truncated:
            batch["loss_mask"] = np.asarray(mask_truncated(batch["loss_mask"], truncated))
        return batch

    def _placed(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        cut = microbatches(batch, self.config.tokens_per_microbatch, self._run.batch_shards)
        return place(cut, self._run.mesh)

    def _with_logprobs(self, state: TrainState, micro):
        """Micro-batches with the log-probabilities by other policies than the one that is trained, where needed."""
        config = self.config
        if config.num_iterations > 1 or config.kl_in_reward:
            # Later updates leave the policy that sampled: the ratio needs its logprobs, by the trainer's own forward.
            micro["logp_old"] = self._each(micro, state.params, state.lora)
        if config.kl_coef or config.kl_in_reward:
            # The base with the adapter off, or the frozen copy of a full-parameter run.
            micro["logp_ref"] = self._each(micro, state.params if self._reference is None else self._reference, None)
        return micro

    def _kl_penalty(self, micro, mask: np.ndarray) -> np.ndarray:
        """What kl_in_reward takes off the reward of each row [B]."""
        rows = mask.shape[0]
        if not self.config.kl_in_reward:
            return np.zeros(rows, np.float32)
        old, ref = (
            np.asarray(part).reshape(-1, mask.shape[1])[:rows] for part in fetch((micro["logp_old"], micro["logp_ref"]))
        )
        return -np.asarray(kl_in_reward(np.zeros(rows, np.float32), old, ref, mask, coef=self.config.kl_in_reward))

    def _train(self, state: TrainState, micro, index: int):
        config = self.config
        for iteration in range(config.num_iterations):
            update = index * config.num_iterations + iteration
            state, metrics = self._update(state, micro)
        metrics = {name: float(value) for name, value in metrics.items()}
        return state, {**metrics, "lr": float(self._schedule(update))}

    def _each(self, micro, params, lora):
        """Log-probabilities [M, b, T] of all micro-batches."""
        count = micro["tokens"].shape[0]
        found = [
            self._logprobs(
                params, lora, {name: micro[name][i] for name in ("tokens", "targets", "segment_ids", "positions")}
            )
            for i in range(count)
        ]
        return jnp.stack(found)

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
        rewards = compose(self._run.task, self._rewards, self._eval_examples, completions)
        metrics = dict(self._run.task.evaluate(self._eval_examples, completions))
        metrics["rewards/mean"] = _mean(rewards.total, rewards.valid)
        metrics.update({f"rewards/{name}": _mean(values, True) for name, values in rewards.parts.items()})
        metrics.update(completion_metrics(completions))
        rows = []
        for number, (example, completion) in enumerate(zip(self._eval_examples, completions, strict=True)):
            row = {"id": example.id, "output": completion.text, "finish_reason": completion.finish_reason}
            row["reward"] = float(rewards.total[number]) if rewards.valid[number] else None
            row["parts"] = {name: float(values[number]) for name, values in rewards.parts.items()}
            rows.append(row)
        return metrics, rows


def _joined(results: list[Rewards]) -> Rewards:
    """Rewards of several groups as one, in order."""
    names = list(results[0].parts)
    return Rewards(
        total=np.concatenate([r.total for r in results]),
        parts={name: np.concatenate([r.parts[name] for r in results]) for name in names},
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
    return state, {**mean_metrics(metrics), "grad_norm": norm}
