"""What a training step reads and writes, created sharded; exact gradients over micro-batches."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec

from thoth_jax.models.lora import Lora
from thoth_jax.rl.metrics import combine_metrics


@struct.dataclass
class TrainState:
    """Parameters, adapters and optimiser of a run.

    step: [] int32, optimiser updates so far.
    params: base weights; trained when there is no adapter, frozen otherwise.
    lora: the adapters, or None.
    opt_state: optimiser state of the trained leaves alone.
    """

    step: jax.Array
    params: Any
    lora: Lora | None
    opt_state: Any

    @property
    def trainable(self) -> Any:
        """The tree that the optimiser sees."""
        return self.params if self.lora is None else self.lora

    def with_trainable(self, trainable: Any) -> "TrainState":
        """The same state with other trained leaves."""
        return self.replace(params=trainable) if self.lora is None else self.replace(lora=trainable)


def create_state(params: Any, lora: Lora | None, optimizer: optax.GradientTransformation, mesh) -> TrainState:
    """State at step 0. Moments take the sharding of their parameter and are never materialised unsharded."""
    trainable = params if lora is None else lora
    abstract = jax.eval_shape(optimizer.init, trainable)
    replicated = NamedSharding(mesh, PartitionSpec())
    of = {path: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(trainable)}

    def placed(path, leaf):
        # A moment lies under the path of its parameter, inside whatever states the optimiser is made of.
        own = next((of[path[n:]] for n in range(len(path)) if path[n:] in of), None)
        return own.sharding if own is not None and own.shape == leaf.shape else replicated

    shardings = jax.tree_util.tree_map_with_path(placed, abstract)
    opt_state = jax.jit(optimizer.init, out_shardings=shardings)(trainable)
    step = jax.device_put(jnp.zeros((), jnp.int32), replicated)
    return TrainState(step=step, params=params, lora=lora, opt_state=opt_state)


def microbatches(batch: dict[str, np.ndarray], tokens: int, shards: int) -> dict[str, np.ndarray]:
    """[B, ...] -> [M, b, ...], b x T near `tokens` and a multiple of `shards`; the last one is filled with empty rows.

    An empty row is all zeros: its loss mask is False and its segment id is that of padding, so it changes no sum.

    Args:
      batch: arrays of one row count, "tokens" [B, T] among them.
      tokens: tokens of a micro-batch; 0: all rows in one.
      shards: devices that the rows are spread over.
    """
    rows, length = batch["tokens"].shape
    size = rows if tokens == 0 else min(rows, max(1, tokens // length))
    size = -(-size // shards) * shards
    count = -(-rows // size)
    out = {}
    for name, value in batch.items():
        padded = np.zeros((count * size, *value.shape[1:]), value.dtype)
        padded[:rows] = value
        out[name] = padded.reshape(count, size, *value.shape[1:])
    return out


def place(batch: dict[str, np.ndarray], mesh) -> dict[str, jax.Array]:
    """Micro-batches [M, b, ...] onto the mesh, rows over its data and fsdp axes; [M] arrays go to every device."""

    def put(value):
        spec = PartitionSpec(None, ("data", "fsdp")) if value.ndim > 1 else PartitionSpec(None)
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    return {name: put(value) for name, value in batch.items()}


def summed_gradient(loss_fn: Callable, trainable: Any, batch: dict[str, jax.Array]) -> tuple[Any, dict]:
    """Gradient of the loss summed over all micro-batches, and the combined metrics.

    Sums are divided once, at the end, by the caller: so any cut into micro-batches gives the same gradient.

    Args:
      loss_fn: (trainable, micro-batch) -> (loss sum, metrics as in rl/metrics.py).
      batch: arrays [M, b, ...].
    """

    def one(micro):
        (_, metrics), gradient = jax.value_and_grad(loss_fn, has_aux=True)(trainable, micro)
        return gradient, metrics

    first = {name: value[0] for name, value in batch.items()}
    if next(iter(batch.values())).shape[0] == 1:
        return one(first)

    def body(carry, micro):
        gradient, metrics = one(micro)
        return (jax.tree.map(jnp.add, carry[0], gradient), combine_metrics(carry[1], metrics)), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, first))
    return jax.lax.scan(body, zeros, batch)[0]


def apply_update(state: TrainState, gradient: Any, weight: jax.Array, optimizer) -> tuple[TrainState, jax.Array]:
    """One optimiser update with gradient / weight; none where the gradient is not finite, for it would last.

    Returns:
      The new state and the global norm of the gradient before clipping. A skipped update counts in `step` all the
      same: its batch is not taken again.
    """
    gradient = jax.tree.map(lambda leaf: leaf / weight, gradient)
    norm = optax.global_norm(gradient)
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.trainable)
    new = optax.apply_updates(state.trainable, updates), opt_state
    old = state.trainable, state.opt_state
    trainable, opt_state = jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(norm), a, b), new, old)
    return state.with_trainable(trainable).replace(step=state.step + 1, opt_state=opt_state), norm
