"""Stage 1 with a policy of 1 million parameters: minutes on two CPU cores.

Data: the bundled protocols, or what task_args.train names.
"""

from thoth_jax.config import defaults


def get_config():
    config = defaults("pretrain")
    config.run_dir = "runs/tiny/pretrain"
    config.num_steps = 20
    config.batch_size = 8
    config.max_length = 256
    config.learning_rate = 3e-3
    config.warmup_ratio = 0.1
    config.max_completion_length = 32
    config.save_every = 10
    return config
