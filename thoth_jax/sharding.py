"""Mesh, logical-axis rules and multi-host start-up.

Every array of the stack names its dimensions by logical axes ("batch", "embed", "heads", ...); `RULES` is the only
place that says over which mesh axes they are split. The mesh always has the axes data, fsdp and tensor, some of size 1.
"""

import contextlib
import logging
import math
import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from thoth_jax.errors import InputError

logger = logging.getLogger(__name__)

MESH_AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axes. Weights are split over fsdp along the model dimension and over tensor along heads,
# feed-forward and vocabulary; activations over (data, fsdp) along the batch, so "features" stays whole.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "length": (),
    "features": (),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_dim": (),
    "ffn": ("tensor",),
    "rank": (),
    "layers": (),
    "norm": (),
}


def make_mesh(data: int = 1, fsdp: int = -1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Mesh with axes data, fsdp and tensor; at most one size is -1, which means "the remaining devices".

    Args:
      data: replicas that only share gradients.
      fsdp: parts that each weight is split into along the model dimension.
      tensor: parts that heads, feed-forward and vocabulary are split into.
      devices: defaults to all devices of all processes.

    Raises:
      InputError: the sizes do not multiply to the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    shown = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise InputError(f"mesh {shown}: sizes are at least 1 and at most one of them is -1")
    known = math.prod(size for size in sizes.values() if size != -1)
    if free and len(devices) % known == 0:
        sizes[free[0]] = len(devices) // known
    if math.prod(sizes.values()) != len(devices):
        raise InputError(f"mesh {shown}: does not fit {len(devices)} devices; the sizes must multiply to that number")
    return jax.make_mesh(tuple(sizes.values()), MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def use_mesh(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """Context in which `constrain` is active. Enter it outside of jit; None leaves everything as it is."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def spec(axes: Sequence[str | None], shape: Sequence[int], mesh) -> PartitionSpec:
    """Partition of an array with logical `axes` and `shape` on `mesh`.

    A dimension is split over the longest prefix of its mesh axes whose size divides it, so that a dimension which
    does not divide (few K/V heads, a small batch) is replicated: K/V heads 2 on tensor=4 -> None.

    Raises:
      ValueError: unknown logical axis, wrong number of axes, or two dimensions on one mesh axis.
    """
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} logical axes {tuple(axes)} for an array of shape {tuple(shape)}")
    sizes, used, parts = dict(mesh.shape), set(), []
    for axis, size in zip(axes, shape, strict=True):
        if axis is not None and axis not in RULES:
            raise ValueError(f"unknown logical axis {axis!r}; known: {', '.join(RULES)}")
        taken = list(RULES[axis]) if axis is not None else []
        if used & set(taken):
            raise ValueError(
                f"logical axes {tuple(axes)}: two dimensions on mesh axis {sorted(used & set(taken))[0]!r}"
            )
        used |= set(taken)
        while taken and size % math.prod(sizes[name] for name in taken):
            taken.pop()
        parts.append(None if not taken else taken[0] if len(taken) == 1 else tuple(taken))
    return PartitionSpec(*parts)


def sharding(mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
    """`spec` as a sharding."""
    return NamedSharding(mesh, spec(axes, shape, mesh))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of host batches [B, ...]: rows over (data, fsdp); B must be a multiple of both together."""
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))


def constrain(x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Ask the compiler to split `x` by its logical axes; does nothing where no mesh of ours is in context."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.empty or tuple(mesh.axis_names) != MESH_AXES:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes, x.shape, mesh))


def distributed_start() -> bool:
    """Join the other processes of a multi-process run; call it once, before the first use of a device.

    Several processes are configured by JAX_COORDINATOR_ADDRESS with JAX_NUM_PROCESSES and JAX_PROCESS_ID, by a SLURM
    step with several tasks, or by a TPU slice of several hosts. Otherwise, and on a second call, it does nothing.

    Returns:
      True if this process is one of several.

    Raises:
      InputError: JAX_COORDINATOR_ADDRESS is set but not the number or the rank of the processes.
    """
    if jax.distributed.is_initialized():
        return jax.process_count() > 1
    environment = os.environ
    if environment.get("JAX_COORDINATOR_ADDRESS"):
        numbers = {}
        for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
            if not environment.get(name, "").isdigit():
                raise InputError(f"environment: JAX_COORDINATOR_ADDRESS is set, so {name} must be set to a number too")
            numbers[name] = int(environment[name])
        if numbers["JAX_NUM_PROCESSES"] == 1:
            return False
        jax.distributed.initialize(
            environment["JAX_COORDINATOR_ADDRESS"], numbers["JAX_NUM_PROCESSES"], numbers["JAX_PROCESS_ID"]
        )
        _check_devices()
        return True
    slurm = int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    tpu_slice = len(environment.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
    if not slurm and not tpu_slice:
        return False
    jax.distributed.initialize()
    _check_devices()
    return True


def _check_devices() -> None:
    """Log what this process has; a SLURM job must use all GPUs that it was given."""
    local = jax.local_devices()
    logger.info(
        "process %d of %d: %d of %d devices (%s)",
        jax.process_index(),
        jax.process_count(),
        len(local),
        jax.device_count(),
        local[0].device_kind,
    )
    per_node, nodes = os.environ.get("SLURM_GPUS_ON_NODE", ""), os.environ.get("SLURM_JOB_NUM_NODES", "")
    if local[0].platform == "gpu" and per_node.isdigit() and nodes.isdigit():
        given = int(per_node) * int(nodes)
        if jax.device_count() != given:
            raise InputError(
                f"SLURM gave {nodes} nodes with {per_node} GPUs, but jax sees {jax.device_count()} devices; start one "
                "task for each GPU (--ntasks-per-node) and do not bind GPUs to tasks"
            )


def is_leader() -> bool:
    """Whether this process writes the run's files; the others only compute."""
    return jax.process_index() == 0


def meet(name: str) -> None:
    """Wait until all processes are here; `name` tells the places apart."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def any_process(flag: bool) -> bool:
    """Whether `flag` is true on any process; all of them must call it at the same point of the run."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def fetch(tree):
    """Whole arrays on the host of every process, wherever their parts lie."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def agreed(tree):
    """The first process's host arrays, on all of them: what user code computed may differ."""
    return tree if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(tree)
