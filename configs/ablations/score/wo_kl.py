"""Without the KL to the policy that the run started from."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_kl"
    config.kl_coef = 0.0
    return config
