"""Safetensors files <-> weights, one tensor at a time, driven by the declaration."""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from thoth_jax.errors import InputError
from thoth_jax.models.qwen import Weight
from thoth_jax.sharding import sharding

READABLE = ("F32", "F16", "BF16")


def hf_shape(weight: Weight) -> tuple[int, ...]:
    """Shape of one tensor of `weight` in a checkpoint (of one layer where it is stacked)."""
    shape = weight.shape[1:] if weight.stacked else weight.shape
    if weight.inputs:
        return (int(np.prod(shape[weight.inputs :])), int(np.prod(shape[: weight.inputs])))
    return (int(np.prod(shape)),) if weight.stacked else shape


def hf_names(weight: Weight) -> list[str]:
    """Names of the checkpoint tensors that make up `weight`, in layer order."""
    return [weight.hf_name.format(layer=layer) for layer in range(weight.shape[0] if weight.stacked else 1)]


def to_ours(weight: Weight, tensor: np.ndarray) -> np.ndarray:
    """One checkpoint tensor in our layout: [outputs, inputs] -> [inputs..., outputs...]."""
    shape = weight.shape[1:] if weight.stacked else weight.shape
    return (tensor.T if weight.inputs else tensor).reshape(shape)


def to_hf(weight: Weight, leaf: jax.Array) -> dict[str, np.ndarray]:
    """All checkpoint tensors {name: array} of a parameter leaf."""
    return {name: hf_tensor(weight, leaf, layer) for layer, name in enumerate(hf_names(weight))}


def hf_tensor(weight: Weight, leaf: jax.Array, layer: int) -> np.ndarray:
    """The checkpoint tensor of one layer of a parameter leaf."""
    ours = np.asarray(leaf[layer] if weight.stacked else leaf)
    shape = hf_shape(weight)
    return np.ascontiguousarray(ours.reshape(shape[::-1]).T if weight.inputs else ours.reshape(shape))


class TensorFiles:
    """The tensors of a set of safetensors files.

    Raises:
      InputError: a file is missing, truncated or otherwise not a safetensors file, or two files hold one name.
    """

    def __init__(self, files: Sequence[epath.Path]):
        self._file_of: dict[str, str] = {}
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        for file in files:
            with _opened(str(file)) as opened:
                for name in opened.keys():
                    if name in self._file_of:
                        raise InputError(f"{file}: tensor {name!r} is in {self._file_of[name]} as well")
                    piece = opened.get_slice(name)
                    self._file_of[name] = str(file)
                    self._shapes[name] = (tuple(piece.get_shape()), piece.get_dtype())

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def check(self, declared, where: str, ignored: Sequence[str] = ()) -> None:
        """Compare with the declaration.

        Args:
          declared: tree of `Weight`. where: the checkpoint, for the message. ignored: names that may be there, too.

        Raises:
          InputError: lists all missing, unexpected, mis-shaped and unreadable tensors at once.
        """
        wanted = {name: hf_shape(weight) for weight in jax.tree.leaves(declared) for name in hf_names(weight)}
        faults = [f"missing {name}" for name in wanted if name not in self._shapes]
        for name, (shape, dtype) in self._shapes.items():
            if name in ignored:
                continue
            if name not in wanted:
                faults.append(f"unexpected {name}")
            elif shape != wanted[name]:
                faults.append(f"{name} has shape {list(shape)}, not {list(wanted[name])}")
            elif dtype not in READABLE:
                faults.append(f"{name} is of type {dtype}, not one of {', '.join(READABLE)}")
        if faults:
            raise InputError(f"{where}: weights do not fit the configuration: {'; '.join(faults)}")

    def read(self, name: str) -> np.ndarray:
        """One tensor as it is in its file."""
        with _opened(self._file_of[name]) as opened:
            return opened.get_tensor(name)

    def load(self, declared, dtype: str, mesh: Mesh | None = None):
        """The parameters of a tree of `Weight`, in `dtype`, each placed on its sharding tensor by tensor.

        On the host at most one tensor exists at a time; a stacked weight is filled on the devices layer by layer.
        """
        return jax.tree.map(lambda weight: self._place(weight, dtype, mesh), declared)

    def _place(self, weight: Weight, dtype: str, mesh: Mesh | None) -> jax.Array:
        def tensor(name):
            ours = to_ours(weight, self.read(name))
            shape, axes = (weight.shape[1:], weight.axes[1:]) if weight.stacked else (weight.shape, weight.axes)
            if mesh is None:
                return jnp.asarray(ours.astype(jnp.dtype(dtype)))
            placed = sharding(mesh, axes, shape)
            return jax.make_array_from_callback(shape, placed, lambda index: ours[index].astype(jnp.dtype(dtype)))

        if not weight.stacked:
            return tensor(weight.hf_name)
        placed = None if mesh is None else sharding(mesh, weight.axes, weight.shape)
        stack = jnp.zeros(weight.shape, dtype, device=placed)
        for layer, name in enumerate(hf_names(weight)):
            stack = _fill(placed)(stack, tensor(name), layer)
        return stack


@functools.lru_cache(maxsize=64)
def _fill(placed):
    return jax.jit(lambda stack, part, layer: stack.at[layer].set(part), donate_argnums=0, out_shardings=placed)


@contextlib.contextmanager
def _opened(file: str) -> Iterator:
    # pread: pages of a mapped file would count as this process's memory until the file is closed.
    try:
        opened = safe_open(file, framework="np", backend="pread")
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: not a readable safetensors file ({error})") from None
    with opened:
        yield opened
