"""Thoth-mini, stage sft: the settings of Thoth on Qwen3-4B (the paper gives no others)."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "sft_8b.py"))
    config.run_dir = "runs/thoth_4b/sft"
    config.init_from = "runs/thoth_4b/pretrain"
    return config
