"""Shared set-up: eight virtual CPU devices, so that sharding constraints are active, and one compile cache for all."""

import os
import pathlib
import tempfile

# Before jax is imported: the device count is read once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Test models are so small that nearly all time is compilation: most of it is optimising and fusing what runs once.
QUICK = ("--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false")
for flag in ("--xla_force_host_platform_device_count=8", *QUICK):
    if flag.partition("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "thoth_jax_test_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo() -> pathlib.Path:
    """The project's root directory."""
    return REPO


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """Reference data beside the checkout (golden outputs, real samples); tests that need it skip without it."""
    path = REPO.parent / "shared"
    if not (path / "golden").is_dir():
        pytest.skip("reference data (../shared) is not beside this checkout")
    return path
