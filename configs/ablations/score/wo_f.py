"""Without f(d): an answer with too few or too many steps loses nothing by that."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_f"
    config.task_args.score = {"use_step_scale": False}
    return config
