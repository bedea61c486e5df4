"""Mesh, rules and start-up, on eight virtual devices."""

import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from thoth_jax import sharding
from thoth_jax.errors import InputError


def test_mesh_fills_the_free_axis():
    assert dict(sharding.make_mesh().shape) == {"data": 1, "fsdp": 8, "tensor": 1}
    assert dict(sharding.make_mesh(data=2, fsdp=2, tensor=-1).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert dict(sharding.make_mesh(devices=jax.devices()[:1]).shape) == {"data": 1, "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize("sizes", [{"fsdp": 3}, {"fsdp": -1, "tensor": 3}, {"data": -1, "fsdp": -1}, {"fsdp": 0}])
def test_impossible_meshes_are_refused(sizes):
    with pytest.raises(InputError, match="mesh data="):
        sharding.make_mesh(**sizes)


def test_dimensions_that_do_not_divide_are_replicated():
    mesh = sharding.make_mesh(data=1, fsdp=2, tensor=4)
    axes = ("layers", "embed", "kv_heads", "head_dim")
    assert sharding.spec(axes, (3, 64, 4, 16), mesh) == P(None, "fsdp", "tensor", None)
    assert sharding.spec(axes, (3, 64, 2, 16), mesh) == P(None, "fsdp", None, None)
    assert sharding.spec(axes, (3, 63, 2, 16), mesh) == P(None, None, None, None)


def test_small_batches_use_the_axes_that_divide_them():
    mesh = sharding.make_mesh(data=2, fsdp=4)
    assert sharding.spec(("batch", "length"), (8, 5), mesh) == P(("data", "fsdp"), None)
    assert sharding.spec(("batch", "length"), (2, 5), mesh) == P("data", None)
    assert sharding.spec(("batch", "length"), (3, 5), mesh) == P(None, None)


def test_wrong_axes_are_refused():
    mesh = sharding.make_mesh()
    with pytest.raises(ValueError, match="two dimensions on mesh axis 'tensor'"):
        sharding.spec(("heads", "ffn"), (8, 8), mesh)
    with pytest.raises(ValueError, match="unknown logical axis 'head'"):
        sharding.spec(("head",), (8,), mesh)
    with pytest.raises(ValueError, match="2 logical axes"):
        sharding.spec(("heads", "head_dim"), (8,), mesh)


def test_constrain_is_active_in_a_mesh_only():
    def double(x):
        return sharding.constrain(x * 2, ("batch", "ffn"))

    x = jnp.ones((8, 4))
    assert jax.jit(double)(x).sharding.is_fully_replicated
    with sharding.use_mesh(sharding.make_mesh(data=2, fsdp=2, tensor=2)):
        got = jax.jit(double)(x)
    assert got.sharding.spec == P(("data", "fsdp"), "tensor")
    with sharding.use_mesh(None):
        np.testing.assert_array_equal(jax.jit(double)(x), got)


def test_batch_sharding_splits_rows():
    placed = jax.device_put(np.zeros((16, 3)), sharding.batch_sharding(sharding.make_mesh(data=2, fsdp=4)))
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 3)}


@pytest.fixture
def started(monkeypatch):
    """The arguments of each jax.distributed.initialize call; the environment names no processes."""
    calls = []
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args: calls.append(args))
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: bool(calls))
    return calls


def test_one_process_starts_nothing(started, monkeypatch):
    assert not sharding.distributed_start()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    assert not sharding.distributed_start()
    assert started == []


def test_several_processes_start_once(started, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host0:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    assert sharding.distributed_start()
    sharding.distributed_start()
    assert started == [("host0:1234", 2, 1)]


@pytest.mark.parametrize(("name", "value"), [("SLURM_STEP_NUM_TASKS", "4"), ("TPU_WORKER_HOSTNAMES", "host0,host1")])
def test_clusters_are_detected(started, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert sharding.distributed_start()
    assert started == [()]


def test_half_a_configuration_is_refused(started, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host0:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(InputError, match="JAX_PROCESS_ID"):
        sharding.distributed_start()


@pytest.mark.parametrize(("seen", "fits"), [(16, True), (2, False)])
def test_a_slurm_job_uses_all_of_its_gpus(started, monkeypatch, caplog, seen, fits):
    gpu = types.SimpleNamespace(platform="gpu", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(jax, "device_count", lambda: seen)
    for name, value in (("STEP_NUM_TASKS", "16"), ("GPUS_ON_NODE", "8"), ("JOB_NUM_NODES", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    if fits:
        with caplog.at_level(logging.INFO, "thoth_jax"):
            assert sharding.distributed_start()
        assert "process 0 of 1: 1 of 16 devices (H100)" in caplog.text
    else:
        with pytest.raises(InputError, match="2 nodes with 8 GPUs, but jax sees 2 devices"):
            sharding.distributed_start()
