"""Stage 3 with a policy of 1 million parameters: minutes on two CPU cores.

Data: the bundled items of protocols that SFT has not seen, or what task_args.train names.
"""

from thoth_jax.config import defaults


def get_config():
    config = defaults("rl")
    config.run_dir = "runs/tiny/rl"
    config.init_from = "runs/tiny/sft"
    config.task_args.pool = "rl"
    config.num_steps = 4
    config.prompts_per_step = 4
    config.group_size = 4
    config.max_prompt_length = 480
    config.max_completion_length = 192
    config.learning_rate = 1e-4
    config.kl_coef = 0.0005
    config.save_every = 2
    config.eval_examples = 8
    return config
