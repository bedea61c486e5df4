"""Golden checkpoints (outputs of transformers in float32) and small models of our own."""

import types

import jax
import numpy as np
import pytest

from thoth_jax.models import QwenConfig, hf, init_params


@pytest.fixture(scope="session", params=["tiny_qwen3_tied", "tiny_qwen2"])
def golden(request, shared):
    """A golden checkpoint, loaded: path, config, params and the reference outputs by name."""
    return load_golden(shared / "golden" / request.param)


@pytest.fixture(scope="session")
def golden_qwen3(shared):
    return load_golden(shared / "golden" / "tiny_qwen3_tied")


def load_golden(path):
    config, params, _ = hf.load(path)
    return types.SimpleNamespace(path=path, config=config, params=params, want=np.load(path / "golden.npz"))


@pytest.fixture(scope="session")
def config():
    """A Qwen3 whose dimensions all differ, head_dim is not D / N, and the output table is its own."""
    return QwenConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=56,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        rope_theta=10000.0,
        tie_embeddings=False,
        initializer_range=0.2,
    )


@pytest.fixture(scope="session")
def params(config):
    return init_params(config, jax.random.key(0))
