"""Stages pretrain and sft: next-token prediction on packed rows, the loss on what is to be learnt only."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.data.encoding import encode_documents, encode_examples
from thoth_jax.data.order import EpochOrder
from thoth_jax.data.packing import Rows, Sample, fill, plan
from thoth_jax.models import hidden_states, token_logprobs
from thoth_jax.rl.metrics import mean_metrics
from thoth_jax.train.build import Run
from thoth_jax.train.optimizer import learning_rate_schedule, make_optimizer
from thoth_jax.train.sampling import Answerer, completion_metrics, prompts_of, sample_rows, usable
from thoth_jax.train.state import TrainState, apply_update, microbatches, place, summed_gradient

# In stage pretrain the policy continues the first tokens of held-out documents, for people to read.
_CONTINUED = 4
_OPENING = 16


def lm_loss(params, lora, model, batch, *, chunk_size: int, dropout_key=None):
    """Summed negative log-likelihood of the tokens to be learnt.

    Args:
      batch: arrays [b, T] as in data.packing.Rows.
      chunk_size: tokens whose logits exist at one time.

    Returns:
      (loss sum, {"loss": (loss sum, tokens)}).
    """
    hidden = hidden_states(params, model, batch["tokens"], batch["positions"], batch["segment_ids"], lora, dropout_key)
    logprobs, _ = token_logprobs(params, model, hidden, batch["targets"], chunk_size=chunk_size, lora=lora)
    mask = batch["loss_mask"]
    loss = -jnp.sum(jnp.where(mask, logprobs, 0.0))
    return loss, {"loss": (loss, jnp.sum(mask).astype(jnp.float32))}


class LmStage:
    """Trains on the documents (pretrain) or on the gold answers (sft) of a Task.

    num_steps: updates of the whole run. batch: arrays of the newest step, on the host.
    """

    updates_per_step = 1
    batch: dict[str, np.ndarray]

    def __init__(self, run: Run):
        self._run = run
        config = self.config = run.config
        self._packing = config.stage == "pretrain" or config.packing
        self._rows = self._make_rows("train", config.train_examples)
        self._order = EpochOrder(len(self._rows), config.seed)
        self.num_steps = config.num_steps or max(1, math.ceil(config.num_epochs * len(self._rows) / config.batch_size))
        self.optimizer = make_optimizer(config, self.num_steps)
        self._schedule = learning_rate_schedule(config, self.num_steps)
        self._eval_rows = self._make_rows("eval", config.eval_examples)
        self._eval_examples, prompts = self._eval_prompts()
        self._answer = Answerer(
            run, prompts, config.max_length if config.stage == "pretrain" else config.max_prompt_length
        )
        static = {"model": run.model, "optimizer": self.optimizer, "chunk_size": config.loss_chunk_size}
        self._update = jax.jit(functools.partial(_update, **static), donate_argnums=0)
        self._loss = jax.jit(functools.partial(lm_loss, model=run.model, chunk_size=config.loss_chunk_size))

    def _make_rows(self, split: str, limit: int) -> Rows:
        """The first `limit` items of a split (0: all) as rows."""
        config, run = self.config, self._run
        if config.stage == "pretrain":
            documents = itertools.islice(run.task.documents(split), limit or None)
            samples = encode_documents(documents, run.tokenizer, config.max_length)
        else:
            examples = run.task.examples(split)
            samples = self._encode(usable(run, examples[: limit or len(examples)], run.task.target)).samples
        return pack(samples, config.max_length, self._packing)

    def _encode(self, examples):
        config, run = self.config, self._run
        return encode_examples(
            run.task, examples, run.tokenizer, max_length=config.max_length, max_prompt_length=config.max_prompt_length,
            too_long=config.too_long, enable_thinking=config.enable_thinking,
        )  # fmt: skip

    def _eval_prompts(self):
        config, run = self.config, self._run
        if config.stage == "pretrain":
            documents = list(itertools.islice(run.task.documents("eval"), _CONTINUED))
            openings = [
                run.tokenizer.encode_document(text)[:_OPENING]
                if isinstance(text, str)
                else run.tokenizer.encode(text[0])
                for text in documents
            ]
            return documents, [opening[-config.max_length :] for opening in openings]
        encoded = prompts_of(run, "eval", config.eval_examples)
        return encoded.examples, encoded.prompts

    def describe(self) -> str:
        """Shapes and objective, for --dry-run."""
        c, shape = self.config, self._rows.tokens.shape
        learnt, epochs = int(self._rows.loss_mask.sum()), self.num_steps * c.batch_size / shape[0]
        what = (
            "every token of a document" if c.stage == "pretrain" else "the answer and its end token, given the prompt"
        )
        return (
            f"objective: - sum log p(token) / tokens learnt, over {what}\n"
            f"rows: {shape[0]} x {shape[1]} tokens, {learnt} learnt ({learnt / self._rows.tokens.size:.0%})\n"
            f"update: {c.batch_size} rows, {self.num_steps} updates ({epochs:.2f} epochs)"
        )

    def position(self) -> None:
        """Nothing: the number of the step says which rows come next."""

    def resume(self, position: None, step: int) -> None:
        """Go on from step `step`."""

    def step(self, state: TrainState, index: int, should_stop) -> tuple[TrainState, dict] | None:
        """Update number `index` (from 0)."""
        config = self.config
        batch = self._rows.take(self._order.take(index * config.batch_size, config.batch_size))
        self.batch = batch
        micro = microbatches(batch, config.tokens_per_microbatch, self._run.batch_shards)
        if config.lora.dropout and config.lora.rank:
            micro["number"] = np.arange(len(micro["tokens"]), dtype=np.int32)
        key = jax.random.fold_in(jax.random.key(config.seed), index)
        state, metrics = self._update(state, place(micro, self._run.mesh), key)
        return state, {**metrics, "lr": float(self._schedule(index)), "tokens": int(batch["loss_mask"].sum())}

    def evaluate(self, state: TrainState, should_stop) -> tuple[dict, list[dict]] | None:
        """Held-out loss and the policy's greedy answers, judged by the Task.

        Returns:
          (metrics, sample rows), or None if `should_stop` came true.
        """
        metrics = self._held_out_loss(state)
        completions = self._answer(state.params, state.lora, should_stop)
        if completions is None:
            return None
        if self.config.stage == "pretrain":
            pairs = zip(self._eval_examples, completions, strict=True)
            return metrics, [{"document": _shown(text), "output": c.text} for text, c in pairs]
        metrics.update(self._run.task.evaluate(self._eval_examples, completions))
        metrics.update(completion_metrics(completions))
        return metrics, sample_rows(self._run.task, self._eval_examples, completions)

    def _held_out_loss(self, state: TrainState) -> dict:
        config, total, weight = self.config, 0.0, 0.0
        for start in range(0, len(self._eval_rows), config.batch_size):
            batch = self._eval_rows.take(np.arange(start, min(start + config.batch_size, len(self._eval_rows))))
            # All evaluation batches have one shape: the last one is filled up.
            filled = {
                name: np.zeros((config.batch_size, *value.shape[1:]), value.dtype) for name, value in batch.items()
            }
            for name, value in batch.items():
                filled[name][: len(value)] = value
            micro = place(microbatches(filled, config.tokens_per_microbatch, self._run.batch_shards), self._run.mesh)
            for number in range(len(micro["tokens"])):
                one = {name: value[number] for name, value in micro.items()}
                _, sums = self._loss(state.params, state.lora, batch=one)
                total, weight = total + float(sums["loss"][0]), weight + float(sums["loss"][1])
        loss = total / max(weight, 1.0)
        return {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}


def _shown(document: str | tuple[str, str]) -> str:
    """A document as it stands beside what the policy made of its opening."""
    return document[:200] if isinstance(document, str) else "".join(document)


def pack(samples: list[Sample], length: int, packing: bool) -> Rows:
    """Samples into rows of `length` places."""
    return fill(samples, plan([sample.width for sample in samples], length, packing), length)


def _update(state: TrainState, batch, key, *, model, optimizer, chunk_size):
    def loss_fn(trainable, micro):
        own = state.with_trainable(trainable)
        dropout_key = jax.random.fold_in(key, micro["number"]) if "number" in micro else None
        return lm_loss(own.params, own.lora, model, micro, chunk_size=chunk_size, dropout_key=dropout_key)

    gradient, metrics = summed_gradient(loss_fn, state.trainable, batch)
    state, norm = apply_update(state, gradient, metrics["loss"][1], optimizer)
    return state, {**mean_metrics(metrics), "grad_norm": norm}
