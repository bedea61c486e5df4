"""Without m_ij: a pair of steps is worth the same however far apart its places are."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_m"
    config.task_args.score = {"use_decay": False}
    return config
