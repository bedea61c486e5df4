"""Start scripts, run with an environment of their own."""

import os
import pathlib
import subprocess
from collections.abc import Sequence

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"


def run_script(
    name: str, settings: Sequence[str], *arguments: str, path: pathlib.Path | None = None, **environment: str
) -> subprocess.CompletedProcess:
    """Run launch/NAME.

    Args:
      settings: variables that are taken out of the environment first.
      path: a directory whose commands go before all others.
      environment: variables to set.
    """
    variables = {key: value for key, value in os.environ.items() if key not in settings} | environment
    if path is not None:
        variables["PATH"] = f"{path}{os.pathsep}{variables['PATH']}"
    return subprocess.run(
        ["bash", str(LAUNCH / name), *arguments], env=variables, capture_output=True, text=True, timeout=60
    )
