"""Loading keeps at most one tensor beside what is already placed: a synthetic checkpoint of 4 GB (make test-slow)."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from thoth_jax.models import QwenConfig, count_params, declare, hf
from thoth_jax.models.tensors import hf_names, hf_shape

pytestmark = pytest.mark.slow
CONFIG = QwenConfig(151936, 2048, 6144, 28, 16, 8, 128, tie_embeddings=False, dtype="bfloat16")
_LOAD = """
import json, resource, sys
from thoth_jax.models import load_config, load_params
from thoth_jax.sharding import make_mesh
import jax
jax.devices()
mesh = make_mesh(fsdp=int(sys.argv[2])) if int(sys.argv[2]) > 1 else None
params = jax.block_until_ready(load_params(sys.argv[1], load_config(sys.argv[1]), mesh, "bfloat16"))
pages = int(open("/proc/self/statm").read().split()[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
print(json.dumps({"peak": peak, "final": pages * resource.getpagesize(), "size": size}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """One file a weight, written tensor by tensor."""
    import jax

    directory = tmp_path_factory.mktemp("large")
    weight_map = {}
    for number, weight in enumerate(jax.tree.leaves(declare(CONFIG))):
        name = f"part-{number}.safetensors"
        tensors = {key: np.full(hf_shape(weight), number + 1, ml_dtypes.bfloat16) for key in hf_names(weight)}
        save_file(tensors, directory / name)
        weight_map |= dict.fromkeys(tensors, name)
    (directory / hf.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    hf.save_config(directory, CONFIG)
    return directory


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="resident memory is read from /proc")
@pytest.mark.parametrize("devices", [1, 8])
def test_peak_is_one_tensor_above_the_end(checkpoint, devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(checkpoint), str(devices)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    largest = CONFIG.vocab_size * CONFIG.hidden_size * 2
    assert found["size"] == 2 * count_params(CONFIG) > 4e9
    assert found["peak"] - found["final"] < largest + 256 * 2**20, found
