"""Without g(Lbar): steps of more than 30 words lose nothing by that.

The quickstart's golds have about ten words a step, so that g acts on answers that run away only."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/wo_g"
    config.task_args.score = {"use_length_penalty": False}
    return config
