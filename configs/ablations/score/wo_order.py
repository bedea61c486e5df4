"""Without Order: content alone, 0 to 1.5."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_order"
    config.task_args.score = {"use_order": False}
    return config
