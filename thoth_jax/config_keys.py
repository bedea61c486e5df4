"""Every configuration key: default, one-line help, type, limits, and the stages that read it."""

import dataclasses
from typing import Any

from thoth_jax.errors import InputError, nearest

STAGES = ("pretrain", "sft", "rl")
_LM = ("pretrain", "sft")
_RL = ("rl",)
_CHAT = ("sft", "rl")
# Free-form keys: their names belong to the Task and to the reward functions.
FREE = ("task_args", "rewards")


@dataclasses.dataclass(frozen=True)
class Key:
    """One configuration key. The type is that of the default; `stages` are those that read it."""

    default: Any
    help: str
    stages: tuple[str, ...] = STAGES
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False  # None is allowed
    kind: type | None = None  # only where the default does not tell (None)

    @property
    def type(self) -> type:
        return self.kind or type(self.default)


KEYS: dict[str, Key] = {
    "stage": Key("sft", "which training stage this run is", choices=STAGES),
    "run_dir": Key("", "run directory; empty: runs/STAGE"),
    "seed": Key(0, "seed of initialisation, data order, dropout and sampling", minimum=0),
    "task": Key("thoth_jax.tasks.protocol:ProtocolTask", "the Task, as an import path module:name"),
    "task_args": Key({}, "arguments of the Task (task_args.NAME=VALUE), checked against its signature"),
    "rewards": Key((), "rewards [{fn, weight, kwargs}]; empty: the task's own; fn 'task' puts that in", _RL),
    "init_from": Key(
        "", "weights to start from: an HF directory or hub id, or a run directory; empty: random, from model.*"
    ),
    "tokenizer": Key(
        "",
        "HF directory, tokenizer.json or SentencePiece .model; empty: that of init_from, else the bundled",
    ),
    # The policy. With init_from the architecture comes from there.
    "model.hidden_size": Key(128, "D, model width", minimum=1),
    "model.intermediate_size": Key(384, "F, feed-forward width", minimum=1),
    "model.num_layers": Key(4, "L, layers", minimum=1),
    "model.num_heads": Key(4, "N, query heads", minimum=1),
    "model.num_kv_heads": Key(2, "K, key/value heads (divides num_heads)", minimum=1),
    "model.head_dim": Key(32, "H, width of a head (even)", minimum=2),
    "model.rope_theta": Key(10000.0, "base of the rotary embedding", minimum=1.0),
    "model.tie_embeddings": Key(True, "the output head is the embedding"),
    "model.dtype": Key("float32", "compute type; master parameters are float32", choices=("float32", "bfloat16")),
    "model.remat": Key("none", "recompute layers in the backward pass to save memory", choices=("none", "full")),
    "lora.rank": Key(0, "R, rank of the adapters; 0: train all parameters", minimum=0),
    "lora.alpha": Key(16.0, "adapters are scaled by alpha / rank (see lora.rslora)", minimum=0.0),
    "lora.dropout": Key(0.0, "dropout on the adapters' input", _LM, minimum=0.0, maximum=0.99),
    "lora.targets": Key(("all",), "adapted matrices by HF name (q_proj, ...), or all"),
    "lora.rslora": Key(False, "scale adapters by alpha / sqrt(rank) instead"),
    "lora.modules_to_save": Key((), "trained whole beside the adapters: embed_tokens, lm_head"),
    "mesh.data": Key(1, "devices on the data axis; -1: the rest", minimum=-1),
    "mesh.fsdp": Key(-1, "devices on the fsdp axis; -1: the rest", minimum=-1),
    "mesh.tensor": Key(1, "devices on the tensor axis; -1: the rest", minimum=-1),
    # Optimiser.
    "optimizer": Key(
        "adamw",
        "muon: linear maps of layers by orthogonalised momentum, the rest by AdamW (without adapters)",
        choices=("adamw", "muon"),
    ),
    "learning_rate": Key(1e-3, "peak learning rate", minimum=0.0),
    "schedule": Key("cosine", "learning rate after warm-up", choices=("cosine", "linear", "constant")),
    "warmup_ratio": Key(0.0, "share of the steps with a linear warm-up", minimum=0.0, maximum=1.0),
    "weight_decay": Key(0.0, "decoupled weight decay on matrices (not on norms and biases)", minimum=0.0),
    "adam_b1": Key(0.9, "decay of the first moment", minimum=0.0, maximum=0.9999),
    "adam_b2": Key(0.95, "decay of the second moment", minimum=0.0, maximum=0.999999),
    "max_grad_norm": Key(1.0, "clip gradients to this global norm; 0: off", minimum=0.0),
    "stop_after_skipped": Key(
        3, "stop after so many steps in a row whose gradient was not finite; such a step changes nothing", minimum=1
    ),
    # Length of the run.
    "num_epochs": Key(1.0, "passes over the data, where num_steps is 0", minimum=0.0),
    "num_steps": Key(0, "optimiser steps (stage rl: rollout steps); 0: from num_epochs", minimum=0),
    "train_examples": Key(0, "training items (documents in stage pretrain), the first of them; 0: all", minimum=0),
    "batch_size": Key(16, "rows of an update", _LM, minimum=1),
    "max_length": Key(
        512, "tokens of a row; longer documents are split, longer examples follow `too_long`", _LM, minimum=2
    ),
    "packing": Key(True, "several examples in a row, kept apart by segment ids", ("sft",)),
    "too_long": Key(
        "refuse",
        "an item over the length limit: refuse, or truncate or drop and count it",
        _CHAT,
        choices=("refuse", "truncate", "drop"),
    ),
    "enable_thinking": Key(
        True, "chat template leaves the think block to the policy; False: opens the answer with an empty one", _CHAT
    ),
    "tokens_per_microbatch": Key(
        0, "tokens of a forward and backward pass (gradients stay exact); 0: the whole batch", minimum=0
    ),
    "loss_chunk_size": Key(1024, "tokens whose logits exist at one time", minimum=1),
    # Reinforcement learning.
    "preset": Key(
        "none",
        "an algorithm, whose keys are set where you do not set them (docs/rl.md)",
        _RL,
        choices=("none", "grpo", "dapo", "dr_grpo", "gspo", "rloo"),
    ),
    "prompts_per_step": Key(8, "P, prompts of a step", _RL, minimum=1),
    "prompts_per_update": Key(
        0, "prompts of an update, a part of prompts_per_step (mini-batches); 0: all of them", _RL, minimum=0
    ),
    "group_size": Key(8, "G, samples of a prompt", _RL, minimum=2),
    "temperature": Key(1.0, "sampling temperature; divides the training logits too", _RL, minimum=1e-3),
    "max_prompt_length": Key(512, "tokens of a prompt; longer ones follow `too_long`", _CHAT, minimum=1),
    "max_completion_length": Key(256, "tokens of a sampled answer", minimum=1),
    "num_iterations": Key(1, "updates on each batch of rollouts", _RL, minimum=1),
    "epsilon_low": Key(0.2, "the ratio is clipped below at 1 - epsilon_low", _RL, minimum=0.0, maximum=1.0),
    "epsilon_high": Key(0.2, "the ratio is clipped above at 1 + epsilon_high", _RL, minimum=0.0),
    "dual_clip": Key(
        None,
        "a token of a bad answer costs at most dual_clip times its advantage; none: off",
        _RL,
        minimum=1.0001,
        optional=True,
        kind=float,
    ),
    "level": Key(
        "token",
        "importance ratio by token, or by sequence (GSPO)",
        _RL,
        choices=("token", "sequence", "sequence_token"),
    ),
    "aggregation": Key(
        "token_mean",
        "how token losses become one loss",
        _RL,
        choices=("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"),
    ),
    "constant": Key(None, "tokens per row in aggregation=constant", _RL, minimum=1.0, optional=True, kind=float),
    "scale_rewards": Key(
        "group",
        "advantages are divided by the std of the group, of the batch, or not",
        _RL,
        choices=("group", "batch", "none"),
    ),
    "baseline": Key("mean", "what is subtracted from a reward", _RL, choices=("mean", "leave_one_out")),
    "kl_coef": Key(0.0, "weight of the KL to the reference policy; 0: no reference is computed", _RL, minimum=0.0),
    "kl_in_reward": Key(
        0.0, "weight of the KL to the reference policy, summed over an answer, taken off its reward", _RL, minimum=0.0
    ),
    "kl_estimator": Key("k3", "estimator of that KL", _RL, choices=("k3", "k1", "k2", "abs")),
    "kl_clamp": Key(
        None,
        "largest |logp - logp_ref| and largest KL of a token, as 20,10; none: off",
        _RL,
        optional=True,
        kind=tuple,
    ),
    "entropy_coef": Key(0.0, "weight of an entropy bonus", _RL),
    "rollout_correction.level": Key(
        "none",
        "weights between sampler and trainer, exp(logp_old - logp_rollout), by token or by sequence",
        _RL,
        choices=("none", "token", "sequence"),
    ),
    "rollout_correction.cap": Key(2.0, "the largest of these weights", _RL, minimum=1e-6),
    "rollout_correction.mode": Key(
        "truncate", "a weight above the cap becomes the cap, or 0", _RL, choices=("truncate", "mask")
    ),
    "overlong.buffer": Key(
        0, "tokens before max_completion_length over which a length penalty grows; 0: no penalty", _RL, minimum=0
    ),
    "overlong.penalty": Key(1.0, "what it takes off the reward at most", _RL, minimum=0.0),
    "dynamic_sampling.max_rounds": Key(
        0, "replace prompts whose samples do not differ in reward, in at most so many rounds; 0: off", _RL, minimum=0
    ),
    "dynamic_sampling.filter": Key(
        "raw", "the reward in which they must differ: raw (before shaping), or the name of a part of it", _RL
    ),
    "mask_truncated": Key(False, "answers cut off at the length limit give no loss", _RL),
    "reward_timeout": Key(
        0.0,
        "seconds that the rewards of a group may take; samples of a slower one are left out; 0: no limit",
        _RL,
        minimum=0.0,
    ),
    "slots": Key(0, "rows that are decoded together; 0: all of a step", _RL, minimum=0),
    # Evaluation, checkpoints.
    "eval_every": Key(0, "evaluate every N steps, and at the end; 0: only at the end", minimum=0),
    "eval_at_start": Key(True, "evaluate before the first step"),
    "eval_examples": Key(64, "evaluation items, at most; 0: all", minimum=0),
    "save_every": Key(50, "checkpoint every N steps, and at the end", minimum=1),
    "keep_checkpoints": Key(2, "newest checkpoints that are kept", minimum=1),
    "keep_best": Key(0, "checkpoints of the best evaluations that are kept beside them; 0: none", minimum=0),
    "best_metric": Key("", "what makes an evaluation the best: a metric of it, for example score"),
    "best_mode": Key("max", "whether the largest or the smallest is the best", choices=("max", "min")),
}

# Where a stage has another default than the table.
STAGE_DEFAULTS: dict[str, dict[str, Any]] = {
    "pretrain": {"learning_rate": 3e-3, "max_completion_length": 64},
    "sft": {"max_length": 1024},
    "rl": {"learning_rate": 1e-4, "schedule": "constant", "num_epochs": 1.0},
}


def keys_of(stage: str) -> dict[str, Key]:
    """The keys that `stage` reads, with that stage's defaults."""
    if stage not in STAGES:
        raise InputError(f"stage {stage!r}{nearest(stage, STAGES)}")
    own = STAGE_DEFAULTS.get(stage, {})
    found = {}
    for name, key in KEYS.items():
        if stage in key.stages:
            default = stage if name == "stage" else own.get(name, key.default)
            found[name] = dataclasses.replace(key, default=default)
    return found


def describe(stage: str) -> str:
    """One line for each key of a stage: name, default, help."""
    lines = [f"keys of stage {stage} (--config.KEY=VALUE):"]
    for name, key in keys_of(stage).items():
        choices = f" [{'|'.join(key.choices)}]" if key.choices else ""
        lines.append(f"  {name} = {key.default!r}{choices}\n      {key.help}")
    return "\n".join(lines)
