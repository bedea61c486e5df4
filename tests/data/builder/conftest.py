"""The corpus of the bundled sources, read once."""

import pytest

from thoth_jax.data import bundled
from thoth_jax.data.builder import corpus_of, read_sources


@pytest.fixture(scope="session")
def corpus():
    return corpus_of(read_sources(bundled.source_directory()))
