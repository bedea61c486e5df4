"""Qwen2 and Qwen3 (dense): one declaration per weight, and the forward pass.

`declare` says once what each weight is; initialisation, sharding, import and export all read it. Parameters are a
nested dict of arrays with the layers stacked on a leading axis, so that training scans over layers and compile time
does not grow with depth. Shape letters: B batch, T query time, S key time, D model, N query heads, K key/value heads,
H head dim, F feed-forward, V vocabulary, L layers, R rank.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from thoth_jax.errors import InputError
from thoth_jax.models import attention as attn
from thoth_jax.models import initial
from thoth_jax.models.rope import Yarn, rope_angles, rotate
from thoth_jax.sharding import constrain, sharding

Params = Mapping[str, Any]

REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class QwenConfig:
    """Architecture and how to compute it. Hashable, so it can be a static argument of jit.

    head_dim is independent of hidden_size / num_heads. dtype is the compute dtype: weights are kept as they were
    created or loaded and cast where they are used. remat: "none" keeps all activations for the backward pass, "dots"
    keeps the results of weight matmuls, "full" keeps only the input of each layer. Token ids from valid_vocab_size on
    (padding of the embedding table) get no probability; None: all ids are valid. yarn: how rotary positions are scaled.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    qk_norm: bool = True
    qkv_bias: bool = False
    max_position_embeddings: int = 32768
    initializer_range: float = 0.02
    dtype: str = "float32"
    remat: str = "none"
    valid_vocab_size: int | None = None
    yarn: Yarn | None = None

    def __post_init__(self):
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        )
        for name in sizes:
            if getattr(self, name) < 1:
                raise InputError(f"model.{name}: {getattr(self, name)} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"model.num_heads: {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise InputError(f"model.head_dim: {self.head_dim} must be even (rotary positions turn pairs)")
        if self.dtype not in DTYPES:
            raise InputError(f"model.dtype: {self.dtype!r} must be one of {', '.join(DTYPES)}")
        if self.remat not in REMAT_POLICIES:
            raise InputError(f"model.remat: {self.remat!r} must be one of {', '.join(REMAT_POLICIES)}")
        if self.valid_vocab_size is not None and not 1 <= self.valid_vocab_size <= self.vocab_size:
            raise InputError(f"model.valid_vocab_size: {self.valid_vocab_size} must be in 1..{self.vocab_size}")

    def replace(self, **changes) -> "QwenConfig":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class Weight:
    """What one weight is.

    shape, axes: with the leading "layers" axis where the weight exists once per layer.
    init:        "normal" (standard deviation initializer_range), "zeros" or "ones".
    hf_name:     its name in a Hugging Face checkpoint, with {layer} where it exists once per layer.
    inputs:      for a linear map the number of input dimensions (after "layers"), the rest are outputs; 0: no map.
                 Hugging Face stores a linear map as [outputs, inputs], we as [inputs, outputs].
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: str
    hf_name: str
    inputs: int = 0

    @property
    def stacked(self) -> bool:
        """Whether the weight exists once per layer."""
        return self.axes[0] == "layers"


def declare(config: QwenConfig) -> dict[str, Any]:
    """All weights of the model: the tree of params with a `Weight` at each leaf."""
    c = config
    D, N, K, H, F = c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size

    def per_layer(shape, axes, init, name, inputs=0):
        return Weight((c.num_layers, *shape), ("layers", *axes), init, f"model.layers.{{layer}}.{name}", inputs)

    def linear(shape, axes, name, inputs=1):
        return per_layer(shape, axes, "normal", f"{name}.weight", inputs)

    layers = {
        "input_norm": per_layer((D,), ("norm",), "ones", "input_layernorm.weight"),
        "q_proj": linear((D, N, H), ("embed", "heads", "head_dim"), "self_attn.q_proj"),
        "k_proj": linear((D, K, H), ("embed", "kv_heads", "head_dim"), "self_attn.k_proj"),
        "v_proj": linear((D, K, H), ("embed", "kv_heads", "head_dim"), "self_attn.v_proj"),
        "o_proj": linear((N, H, D), ("heads", "head_dim", "embed"), "self_attn.o_proj", inputs=2),
        "post_norm": per_layer((D,), ("norm",), "ones", "post_attention_layernorm.weight"),
        "gate_proj": linear((D, F), ("embed", "ffn"), "mlp.gate_proj"),
        "up_proj": linear((D, F), ("embed", "ffn"), "mlp.up_proj"),
        "down_proj": linear((F, D), ("ffn", "embed"), "mlp.down_proj"),
    }
    if c.qkv_bias:
        layers["q_bias"] = per_layer((N, H), ("heads", "head_dim"), "zeros", "self_attn.q_proj.bias")
        layers["k_bias"] = per_layer((K, H), ("kv_heads", "head_dim"), "zeros", "self_attn.k_proj.bias")
        layers["v_bias"] = per_layer((K, H), ("kv_heads", "head_dim"), "zeros", "self_attn.v_proj.bias")
    if c.qk_norm:
        layers["q_norm"] = per_layer((H,), ("norm",), "ones", "self_attn.q_norm.weight")
        layers["k_norm"] = per_layer((H,), ("norm",), "ones", "self_attn.k_norm.weight")
    weights = {
        "embed": Weight((c.vocab_size, D), ("vocab", "embed"), "normal", "model.embed_tokens.weight"),
        "layers": layers,
        "norm": Weight((D,), ("norm",), "ones", "model.norm.weight"),
    }
    if not c.tie_embeddings:
        weights["lm_head"] = Weight((c.vocab_size, D), ("vocab", "embed"), "normal", "lm_head.weight")
    return weights


def param_shardings(config: QwenConfig, mesh: Mesh):
    """The sharding of each parameter, as a tree like params."""
    return jax.tree.map(lambda weight: sharding(mesh, weight.axes, weight.shape), declare(config))


def init_params(config: QwenConfig, key: jax.Array, mesh: Mesh | None = None) -> Params:
    """Random float32 parameters, created in place on their shardings: no leaf is ever whole on one device.

    A weight's values depend on `key` and its name only, not on the mesh or on which other weights exist.
    """
    return _initialiser(config, mesh)(key)


@functools.lru_cache(maxsize=16)
def _initialiser(config: QwenConfig, mesh: Mesh | None) -> Callable[[jax.Array], Params]:
    def create(key):
        def one(weight: Weight):
            if weight.init != "normal":
                return getattr(jnp, weight.init)(weight.shape, jnp.float32)
            return config.initializer_range * initial.normal(key, weight.hf_name, weight.shape)

        return jax.tree.map(one, declare(config))

    return jax.jit(create, out_shardings=None if mesh is None else param_shardings(config, mesh))


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in float32, returned in the dtype of x."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * weight.astype(jnp.float32)).astype(x.dtype)


@functools.partial(jax.checkpoint, prevent_cse=False)
def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    """silu(gate) * up; of its many parts the backward pass gets the two arguments alone."""
    return jax.nn.silu(gate) * up


# Maps of one input that `join` lays side by side, so that small batches meet one wide matrix.
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def join(layers: Params) -> Params:
    """The same layers with the weights of `JOINED` as one matrix [L, D, outputs] each, as `block` takes them, too."""

    def wide(names):
        flat = [layers[name].reshape(*layers[name].shape[:2], -1) for name in names]
        return jnp.concatenate(flat, axis=-1)

    parts = {name for names in JOINED.values() for name in names}
    kept = {name: weight for name, weight in layers.items() if name not in parts}
    return kept | {joined: wide(names) for joined, names in JOINED.items()}


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [B, T, inputs] times weight [inputs..., outputs...] -> float32 [B, T, outputs]."""
    weight = weight.astype(x.dtype).reshape(x.shape[-1], -1)
    return _matmul(x, weight)


def _matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [B, T, inputs] times weight [inputs, outputs] -> float32 [B, T, outputs].

    As a product of two matrices: the gradient of a three-dimensional one contracts two axes, for which XLA's CPU
    backend first writes a transposed copy of the activations.
    """
    out = jnp.matmul(x.reshape(-1, x.shape[-1]), weight, preferred_element_type=jnp.float32)
    return out.reshape(*x.shape[:-1], -1)


def _adapted(product: jax.Array, x: jax.Array, adapter, scale: float, dropout: float, key) -> jax.Array:
    """A product of x [B, T, inputs] plus the adapter's low-rank map of x (None: nothing), in the dtype of x."""
    if adapter is None:
        return product.astype(x.dtype)
    if key is not None and dropout > 0.0:
        x = jnp.where(jax.random.bernoulli(key, 1.0 - dropout, x.shape), x / (1.0 - dropout), 0)
    down = adapter["a"].reshape(x.shape[-1], -1)
    up = adapter["b"].reshape(down.shape[1], -1)
    low = _matmul(x.astype(jnp.float32), down)
    return (product + scale * _matmul(low, up)).astype(x.dtype)


def block(x, weights, adapters, rope, attend, config: QwenConfig, scale=1.0, dropout=0.0, key=None):
    """One decoder layer.

    Args:
      x: [B, T, D]. weights: one layer's slice of params["layers"], `join`ed or not.
      adapters: the same slice of lora.layers, or {}.
      rope: (cos, sin) [B, T, H/2].
      attend: (q [B, T, N, H], k, v [B, T, K, H]) -> ([B, T, N, H], state): attention over whatever keys it likes.
      key: dropout key of this layer, or None.

    Returns:
      ([B, T, D], state of attend).
    """
    c, (B, T, _) = config, x.shape

    def adapted(name, product, inputs):
        own = None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))
        return _adapted(product, inputs, adapters.get(name), scale, dropout, own)

    def linear(name, inputs):
        return adapted(name, _product(inputs, weights[name]), inputs)

    def linears(joined, inputs, *widths):
        if joined not in weights:
            return [linear(name, inputs) for name in JOINED[joined]]
        ends = [sum(widths[: n + 1]) for n in range(len(widths) - 1)]
        products = jnp.split(_product(inputs, weights[joined]), ends, axis=-1)
        return [adapted(name, product, inputs) for name, product in zip(JOINED[joined], products, strict=True)]

    def heads(kind, out, axis):
        out = out.reshape(B, T, -1, c.head_dim)
        if c.qkv_bias:
            out = out + weights[f"{kind}_bias"].astype(out.dtype)
        if c.qk_norm and kind != "v":
            out = rms_norm(out, weights[f"{kind}_norm"], c.rms_norm_eps)
        out = constrain(out, ("batch", "length", axis, "head_dim"))
        return out if kind == "v" else rotate(out, rope)

    inputs = rms_norm(x, weights["input_norm"], c.rms_norm_eps)
    own, shared = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    q, k, v = linears("qkv_proj", inputs, own, shared, shared)
    mixed, state = attend(heads("q", q, "heads"), heads("k", k, "kv_heads"), heads("v", v, "kv_heads"))
    x = constrain(x + linear("o_proj", mixed.reshape(B, T, -1)), ("batch", "length", "features"))
    inputs = rms_norm(x, weights["post_norm"], c.rms_norm_eps)
    gate, up = linears("gate_up_proj", inputs, c.intermediate_size, c.intermediate_size)
    hidden = _gated(gate, up)
    hidden = constrain(hidden, ("batch", "length", "ffn"))
    return constrain(x + linear("down_proj", hidden), ("batch", "length", "features")), state


def embed(params: Params, config: QwenConfig, tokens: jax.Array, lora=None) -> jax.Array:
    """Embeddings [B, T, D] of tokens [B, T], in the compute dtype."""
    table = replaced(params, lora)["embed"]
    return constrain(table[tokens].astype(config.dtype), ("batch", "length", "features"))


def replaced(params: Params, lora) -> Params:
    """params with the weights that the adapter carries whole (lora.modules) in place of the base's."""
    return params if lora is None else {**params, **lora.modules}


def scan_layers(body, x, params: Params, config: QwenConfig, lora=None, dropout_key=None, extra=None):
    """Scan `body(x, weights, adapters, key, extra) -> (x, out)` over the layers; extra is stacked on L, too.

    Returns:
      (x, out stacked on L).
    """
    keys = None if dropout_key is None else jax.random.split(dropout_key, config.num_layers)
    adapters = {} if lora is None else lora.layers
    return jax.lax.scan(lambda x, each: body(x, *each), x, (params["layers"], adapters, keys, extra))


def hidden_states(
    params: Params,
    config: QwenConfig,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    lora=None,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Last hidden states after the final norm: what `logits_of` and `token_logprobs` take.

    Args:
      params: as from `init_params`. config: static.
      tokens: [B, T] ids.
      positions: [B, T]; None: counted from 0 within each segment.
      segment_ids: [B, T], tokens see only their own segment, 0 is padding; None: each row is one segment.
      lora: a `Lora` that is added to the base, or None.
      dropout_key: turns the adapter's dropout on.

    Returns:
      [B, T, D] in the compute dtype.
    """
    if positions is None:
        index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        positions = index if segment_ids is None else attn.positions_of(segment_ids)
    rope = rope_angles(positions, config.head_dim, config.rope_theta, config.yarn)
    scale, dropout = (1.0, 0.0) if lora is None else (lora.scale, lora.dropout)

    def body(x, weights, adapters, key, _):
        def attend(q, k, v):
            return attn.training_attention(q, k, v, segment_ids), None

        return block(x, weights, adapters, rope, attend, config, scale, dropout, key)

    if config.remat != "none":
        body = jax.checkpoint(body, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
    x, _ = scan_layers(body, embed(params, config, tokens, lora), params, config, lora, dropout_key)
    return rms_norm(x, params["norm"], config.rms_norm_eps)


def head_weight(params: Params, config: QwenConfig, lora=None) -> jax.Array:
    """The output table [V, D] in the compute dtype; the embedding table where the two are tied."""
    return replaced(params, lora)["embed" if config.tie_embeddings else "lm_head"].astype(config.dtype)


def head_logits(head: jax.Array, config: QwenConfig, hidden: jax.Array) -> jax.Array:
    """Float32 logits [..., V] of hidden [..., D]; ids from valid_vocab_size on get -1e30."""
    logits = jnp.einsum("...D,VD->...V", hidden, head, preferred_element_type=jnp.float32)
    if config.valid_vocab_size is not None and config.valid_vocab_size < config.vocab_size:
        logits = jnp.where(jnp.arange(config.vocab_size) < config.valid_vocab_size, logits, attn.MASKED)
    return logits


def logits_of(params: Params, config: QwenConfig, hidden: jax.Array, lora=None) -> jax.Array:
    """Float32 logits [..., V] of hidden states [..., D]; padded vocabulary ids get -1e30 (no probability)."""
    return head_logits(head_weight(params, config, lora), config, hidden)


def forward(
    params: Params,
    config: QwenConfig,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    lora=None,
) -> jax.Array:
    """Float32 logits [B, T, V] of tokens [B, T]: the plain form, for evaluation and tests.

    Segment id 0 is padding. positions None: counted from 0 within each segment (a run of equal ids); segment_ids None:
    each row is one segment. Training goes through `hidden_states` and `token_logprobs`, which never build [B, T, V].
    """
    hidden = hidden_states(params, config, tokens, positions, segment_ids, lora)
    return constrain(logits_of(params, config, hidden, lora), ("batch", "length", "vocab"))


def count_params(config: QwenConfig) -> int:
    """Number of parameters, tied weights counted once."""
    return sum(math.prod(weight.shape) for weight in jax.tree.leaves(declare(config)))
