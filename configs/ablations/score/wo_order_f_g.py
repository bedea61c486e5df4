"""Without Order, f(d) and g(Lbar): content behind the gates."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_order_f_g"
    config.task_args.score = {"use_order": False, "use_step_scale": False, "use_length_penalty": False}
    return config
