"""Thoth, stage 3: GRPO against SCORE, full parameters (arXiv 2510.15600, section 4; a released run's settings)."""

from thoth_jax.config import defaults


def get_config():
    config = defaults("rl")
    config.run_dir = "runs/thoth_8b/rl"
    config.init_from = "runs/thoth_8b/sft"  # stages 1 and 2, merged
    config.task_args.train = "data/rl.jsonl"  # rows {"system", "query", "response"}
    config.lora.rank = 0  # full parameters

    config.learning_rate = 5e-6
    config.schedule = "constant"
    config.warmup_ratio = 0.0
    config.weight_decay = 0.01
    config.max_grad_norm = 1.0
    config.num_epochs = 15.0

    config.prompts_per_step = 1024
    config.group_size = 5
    # The run updates on mini-batches of 256 prompts (four updates a step); this configuration makes one update a step.
    config.num_iterations = 1  # ppo_epochs
    config.tokens_per_microbatch = 32 * 8 * 2048  # 32 rows per GPU
    config.max_prompt_length = 1024
    config.max_completion_length = 1024
    config.too_long = "drop"  # overlong prompts filtered
    config.temperature = 1.0

    config.epsilon_low = 0.2
    config.epsilon_high = 0.2
    config.dual_clip = 3.0  # its library's default
    config.level = "token"
    config.aggregation = "token_mean"
    config.scale_rewards = "group"
    config.baseline = "mean"
    config.kl_coef = 0.0005
    config.kl_estimator = "k3"
    config.entropy_coef = 0.0

    config.model.dtype = "bfloat16"
    config.eval_at_start = True
    config.eval_every = 5
    config.save_every = 20

    # Not stated anywhere, our choice.
    config.task_args.holdout = 0.01  # the run has a validation file of its own that is not public
    config.adam_b1 = 0.9
    config.adam_b2 = 0.999
    config.mask_truncated = False
    config.slots = 512
    config.seed = 42
    config.enable_thinking = True
    config.model.remat = "full"
    config.keep_checkpoints = 2
    config.eval_examples = 64
    config.mesh.fsdp = -1
    return config
