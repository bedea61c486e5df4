"""The published Qwen models: their configurations without their weights."""

from thoth_jax.errors import InputError, nearest
from thoth_jax.models.qwen import QwenConfig

# hidden, feed-forward, layers, query heads, key/value heads, token ids, tied, parameters as published
# (tied embeddings counted once).
_QWEN25 = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151936, True, 494_032_768),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, True, 1_543_714_304),
    "Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151936, True, 3_085_938_688),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, False, 7_615_616_512),
    "Qwen2.5-14B": (5120, 13824, 48, 40, 8, 152064, False, 14_770_033_664),
    "Qwen2.5-32B": (5120, 27648, 64, 40, 8, 152064, False, 32_763_876_352),
    "Qwen2.5-72B": (8192, 29568, 80, 64, 8, 152064, False, 72_706_203_648),
}
_QWEN3 = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, 151936, True, 596_049_920),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8, 151936, True, 1_720_574_976),
    "Qwen3-4B": (2560, 9728, 36, 32, 8, 151936, True, 4_022_468_096),
    "Qwen3-8B": (4096, 12288, 36, 32, 8, 151936, False, 8_190_735_360),
    "Qwen3-14B": (5120, 17408, 40, 40, 8, 151936, False, 14_768_307_200),
    "Qwen3-32B": (5120, 25600, 64, 64, 8, 151936, False, 32_762_123_264),
}
PUBLISHED_PARAMETERS = {name: row[-1] for name, row in (_QWEN25 | _QWEN3).items()}


def published(name: str) -> QwenConfig:
    """The configuration of a published model, for shapes and counts without its files.

    >>> published("Qwen3-8B").num_layers
    36

    Raises:
      InputError: no such model.
    """
    if name not in PUBLISHED_PARAMETERS:
        raise InputError(f"{name}: no published model that we know{nearest(name, PUBLISHED_PARAMETERS)}")
    qwen3 = name in _QWEN3
    hidden, ffn, layers, heads, kv_heads, vocab, tied, _ = (_QWEN3 if qwen3 else _QWEN25)[name]
    return QwenConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128 if qwen3 else hidden // heads,
        rope_theta=1_000_000.0,
        tie_embeddings=tied,
        qk_norm=qwen3,
        qkv_bias=not qwen3,
        max_position_embeddings=40960 if qwen3 else 32768,
    )
