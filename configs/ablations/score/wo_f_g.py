"""Without f(d) and g(Lbar): step scale is 1."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_f_g"
    config.task_args.score = {"use_step_scale": False, "use_length_penalty": False}
    return config
