"""Model names on the Hugging Face hub -> directories."""

import re

from etils import epath

from thoth_jax.errors import InputError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WEB = re.compile(r"https?://")  # no path that can be opened
_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")


def directory_of(path_or_id, weights: bool = True) -> epath.Path:
    """The directory of a model: `path_or_id` itself where it is one, else the hub's model of that name in the local
    cache, which is filled first unless HF_HUB_OFFLINE is set.

    Args:
      path_or_id: a path, or "organisation/name" with an optional "@revision".
      weights: also fetch the weights.

    Raises:
      InputError: no such directory, and no such model in the cache or on the hub.
    """
    name, _, revision = str(path_or_id).partition("@")
    path = None if _WEB.match(str(path_or_id)) else epath.Path(path_or_id)
    if path is not None and path.is_dir():
        return path
    if path is None or path.exists() or not _ID.fullmatch(name):
        raise InputError(
            f"{path_or_id}: no such directory; a model is a directory with config.json and *.safetensors, or a name on "
            "the hub such as Qwen/Qwen3-8B"
        )
    from huggingface_hub import snapshot_download  # only here: it takes a second to import
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [pattern for pattern in _FILES if weights or "safetensors" not in pattern]
    try:
        return epath.Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path_or_id}: no such directory, and not to be had from the hub ({reason})") from None
