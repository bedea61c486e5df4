"""Algorithms as values of keys, and the names that other libraries give to our keys."""

from collections.abc import Mapping
from typing import Any

# {preset: {key: value}}. "max_completion_length / n" is taken from the run's own.
PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    # arXiv 2402.03300, equation 3: each answer counts the same, KL in the loss.
    "grpo": {"aggregation": "sequence_mean_token_mean", "kl_coef": 0.04},
    # arXiv 2503.14476: clip-higher, token mean, dynamic sampling, overlong penalty, no KL.
    "dapo": {
        "epsilon_high": 0.28,
        "aggregation": "token_mean",
        "kl_coef": 0.0,
        "dynamic_sampling.max_rounds": 10,
        "overlong.buffer": "max_completion_length / 5",
        "overlong.penalty": 1.0,
    },
    # arXiv 2503.20783: neither the std of the group nor the length of the answer divides.
    "dr_grpo": {
        "scale_rewards": "none",
        "aggregation": "constant",
        "constant": "max_completion_length / 1",
        "kl_coef": 0.0,
    },
    # arXiv 2507.18071: one ratio for an answer, clipped close to 1.
    "gspo": {
        "level": "sequence",
        "epsilon_low": 3e-4,
        "epsilon_high": 4e-4,
        "aggregation": "sequence_mean_token_mean",
        "kl_coef": 0.0,
    },
    # arXiv 2402.14740: the others' mean as baseline, KL in the reward, one loss for a whole answer.
    "rloo": {
        "baseline": "leave_one_out",
        "scale_rewards": "none",
        "aggregation": "sequence_mean_token_sum",
        "kl_coef": 0.0,
        "kl_in_reward": 0.05,
    },
}


def preset_values(name: str, max_completion_length: int) -> dict[str, Any]:
    """{key: value} of a preset."""
    found = {}
    for key, value in PRESETS[name].items():
        if isinstance(value, str) and value.startswith("max_completion_length / "):
            value = max_completion_length // int(value.rpartition(" ")[2])
        found[key] = float(value) if key == "constant" else value
    return found


# {name elsewhere: (library, what to set here)}.
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    # TRL
    "num_generations": ("TRL and Tunix", "group_size"),
    "beta": ("TRL and Tunix", "kl_coef"),
    "epsilon": ("TRL and Tunix", "epsilon_low and epsilon_high"),
    "delta": ("TRL", "dual_clip"),
    "loss_type": ("TRL", "aggregation, or a preset"),
    "importance_sampling_level": ("TRL", "level"),
    "mask_truncated_completions": ("TRL", "mask_truncated"),
    "per_device_train_batch_size": ("TRL", "batch_size, or prompts_per_step and tokens_per_microbatch"),
    "gradient_accumulation_steps": ("TRL", "tokens_per_microbatch: the batch stays what it is"),
    "generation_batch_size": ("TRL", "prompts_per_step"),
    "steps_per_generation": ("TRL", "prompts_per_update"),
    "max_steps": ("TRL and Tunix", "num_steps"),
    "num_train_epochs": ("TRL", "num_epochs"),
    "output_dir": ("TRL", "run_dir"),
    "save_steps": ("TRL", "save_every"),
    "eval_steps": ("TRL", "eval_every"),
    "save_total_limit": ("TRL", "keep_checkpoints"),
    "lr_scheduler_type": ("TRL", "schedule"),
    "adam_beta1": ("TRL", "adam_b1"),
    "adam_beta2": ("TRL", "adam_b2"),
    "gradient_checkpointing": ("TRL", "model.remat"),
    "model_name_or_path": ("TRL", "init_from"),
    "reward_weights": ("TRL", "rewards: a weight of each"),
    "lora_r": ("peft", "lora.rank"),
    "lora_alpha": ("peft", "lora.alpha"),
    "lora_dropout": ("peft", "lora.dropout"),
    "target_modules": ("peft", "lora.targets"),
    "use_rslora": ("peft", "lora.rslora"),
    "bf16": ("TRL", "model.dtype=bfloat16"),
    "max_seq_length": ("TRL", "max_length"),
    "entropy_coeff": ("verl", "entropy_coef"),
    "vllm_importance_sampling_cap": ("TRL", "rollout_correction.cap"),
    # verl
    "adv_estimator": ("verl", "a preset, or scale_rewards and baseline"),
    "norm_adv_by_std_in_grpo": ("verl", "scale_rewards"),
    "clip_ratio": ("verl", "epsilon_low and epsilon_high"),
    "clip_ratio_low": ("verl", "epsilon_low"),
    "clip_ratio_high": ("verl", "epsilon_high"),
    "clip_ratio_c": ("verl", "dual_clip"),
    "loss_agg_mode": ("verl", "aggregation"),
    "loss_scale_factor": ("verl", "constant"),
    "kl_loss_coef": ("verl", "kl_coef"),
    "kl_loss_type": ("verl", "kl_estimator"),
    "use_kl_loss": ("verl", "kl_coef"),
    "use_kl_in_reward": ("verl", "kl_in_reward"),
    "ppo_epochs": ("verl", "num_iterations"),
    "ppo_mini_batch_size": ("verl", "prompts_per_update"),
    "ppo_micro_batch_size_per_gpu": ("verl", "tokens_per_microbatch"),
    "ppo_max_token_len_per_gpu": ("verl", "tokens_per_microbatch"),
    "train_batch_size": ("verl", "prompts_per_step"),
    "filter_groups": ("verl", "dynamic_sampling.max_rounds and dynamic_sampling.filter"),
    "max_num_gen_batches": ("verl", "dynamic_sampling.max_rounds"),
    "overlong_buffer": ("verl", "overlong.buffer and overlong.penalty"),
    "max_response_length": ("verl", "max_completion_length"),
    "rollout_is": ("verl", "rollout_correction.level"),
    "rollout_is_threshold": ("verl", "rollout_correction.cap"),
    "grad_clip": ("verl", "max_grad_norm"),
    "lr": ("verl", "learning_rate"),
    # Tunix
    "num_ppo_epochs": ("Tunix", "num_iterations"),
    "advantage_estimator": ("Tunix", "a preset, or scale_rewards and baseline"),
    "loss_algo": ("Tunix", "level, or a preset"),
    "mini_batch_size": ("Tunix", "prompts_per_update"),
    "train_micro_batch_size": ("Tunix", "tokens_per_microbatch"),
    "total_generation_steps": ("Tunix", "max_completion_length"),
    "max_tokens_to_generate": ("Tunix", "max_completion_length"),
    "eval_every_n_steps": ("Tunix", "eval_every"),
    "kl_penalty_method": ("Tunix", "kl_estimator"),
}
# Other engines give no exact logprobs of the policy that is trained.
OTHER_ENGINES = (
    "use_vllm",
    "vllm_mode",
    "vllm_server_base_url",
    "rollout_engine",
    "rollout_backend",
    "endpoint",
    "backend",
)


def elsewhere(name: str) -> str | None:
    """What to say to somebody who uses another library's name for a key; None where it is none."""
    last = name.rpartition(".")[2]
    if last in OTHER_ENGINES or name.startswith(("rollout.name", "actor_rollout_ref.rollout")):
        return (
            "training samples with its own engine, which gives the exact logprobs of the policy that is trained; "
            "served models can be generated from and evaluated (--endpoint)"
        )
    if last in ELSEWHERE:
        library, here = ELSEWHERE[last]
        return f"{library}'s {last} is {here} here"
    return None
