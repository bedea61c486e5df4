"""Stage 2 with a policy of 1 million parameters: minutes on two CPU cores.

Data: the bundled items of SFT protocols, or what task_args.train names.
"""

from thoth_jax.config import defaults


def get_config():
    config = defaults("sft")
    config.run_dir = "runs/tiny/sft"
    config.init_from = "runs/tiny/pretrain"
    config.num_steps = 20
    config.batch_size = 4
    config.max_length = 640
    config.max_prompt_length = 480
    config.max_completion_length = 192
    config.learning_rate = 2e-3
    config.warmup_ratio = 0.1
    config.save_every = 10
    config.eval_examples = 8
    return config
