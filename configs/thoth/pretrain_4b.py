"""Thoth-mini, stage pretrain: the settings of Thoth on Qwen3-4B (the paper gives no others)."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "pretrain_8b.py"))
    config.run_dir = "runs/thoth_4b/pretrain"
    config.init_from = "models/Qwen3-4B"  # hf download Qwen/Qwen3-4B --local-dir models/Qwen3-4B
    return config
