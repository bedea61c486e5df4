"""SCORE as it is: the row that the other eight of the paper's Table 3 are compared with (arXiv 2510.15600).

    thoth train --config=configs/ablations/score/thoth.py --config.init_from=runs/quickstart/sft

All nine start from the SFT checkpoint of the quickstart and differ in nothing but what their names say. Their own
evaluation reports the reward that they train on; for the table each policy is judged with the whole SCORE.
"""

from thoth_jax.config import defaults


def get_config():
    config = defaults("rl")
    config.run_dir = "runs/ablations/score/thoth"
    config.init_from = "runs/quickstart/sft"
    config.task_args.system_prompt = ""
    config.task_args.pool = "rl"  # protocols that SFT has not seen
    config.num_steps = 60
    config.prompts_per_step = 32
    config.prompts_per_update = 4
    config.group_size = 8
    config.learning_rate = 3e-4
    config.adam_b2 = 0.98
    config.epsilon_high = 0.28
    config.kl_coef = 0.0005  # the paper's
    config.max_prompt_length = 480
    config.max_completion_length = 192
    config.eval_every = 20
    config.save_every = 20
    return config
