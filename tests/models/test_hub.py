"""Names on the hub, with the network off: what lies in the local cache is found, the rest is refused in one line."""

import huggingface_hub.constants
import pytest

from thoth_jax.errors import InputError
from thoth_jax.models import hf
from thoth_jax.models.hub import directory_of


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that holds org/small in two revisions."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = tmp_path / "models--org--small"
    (model / "refs").mkdir(parents=True)
    for name, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        (model / "refs" / name).write_text(commit)
        (model / "snapshots" / commit).mkdir(parents=True)
    return model


def test_a_name_is_found_in_the_cache(cache, config, params):
    snapshot = cache / "snapshots" / ("a" * 40)
    hf.save(snapshot, config, params)
    assert str(directory_of("org/small")) == str(snapshot)
    found, loaded, tokenizer = hf.load("org/small")
    assert found == config.replace(dtype="float32") and tokenizer is None
    assert loaded["embed"].shape == params["embed"].shape
    assert str(directory_of("org/small@v1")).endswith("b" * 40)


def test_a_directory_goes_before_a_name(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "small").mkdir(parents=True)
    assert str(directory_of("org/small")) == "org/small"


@pytest.mark.parametrize("name", ["org/other", "org/small@v2"])
def test_what_is_not_in_the_cache_is_refused(cache, name):
    with pytest.raises(InputError, match=f"{name}: no such directory, and not to be had from the hub") as caught:
        hf.load(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "small", "a/b/c", "../x", "/nowhere/at", "org/", "org/..", "-x/y", "https://h/x"])
def test_what_is_no_name_is_refused(cache, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such directory; a model is a directory"):
        hf.load_config(name or "none")
