"""Checkpoints of a run through Orbax: trained leaves, optimiser, position. Asynchronous and atomic."""

import logging
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from thoth_jax.train.state import TrainState

logger = logging.getLogger(__name__)


class Checkpoints:
    """RUN/checkpoints/STEP, the newest `keep` of them.

    A step is complete or invisible: Orbax writes to a temporary directory and renames it. In a LoRA run only the
    adapters and their moments are saved; the base is what the run started from.
    """

    def __init__(self, run_dir: str, keep: int):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(epath.Path(run_dir).absolute() / "checkpoints", options=options)

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, position: dict[str, Any]) -> None:
        """Start writing step `step` in the background; an error of the write before this one is raised here."""
        if step in self._manager.all_steps():
            return
        args = ocp.args.Composite(state=ocp.args.StandardSave(_saved(state)), position=ocp.args.JsonSave(position))
        self._manager.save(step, args=args)

    def restore(self, state: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """Fill `state` (its shapes and shardings) from `step`, the newest by default.

        Returns:
          The state and the position that was saved with it.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _saved(state))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), position=ocp.args.JsonRestore())
        restored = self._manager.restore(step if step is not None else self.latest(), args=args)
        saved = restored.state
        state = state.with_trainable(saved["trainable"]).replace(step=saved["step"], opt_state=saved["opt_state"])
        return state, restored.position

    def close(self) -> None:
        """Wait for the last write; raises its error."""
        self._manager.wait_until_finished()
        self._manager.close()


def restore_trainable(run_dir: str, trainable: Any) -> tuple[Any, int]:
    """The trained leaves of a run's newest checkpoint, without its optimiser.

    Args:
      trainable: tree of arrays with the shapes and shardings wanted.

    Returns:
      The leaves and the step.

    Raises:
      FileNotFoundError: the run has no complete checkpoint.
    """
    directory = epath.Path(run_dir).absolute() / "checkpoints"
    if not directory.exists():
        raise FileNotFoundError(f"{run_dir}: no checkpoints")
    with ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(read_only=True)) as manager:
        step = manager.latest_step()
        if step is None:
            raise FileNotFoundError(f"{run_dir}: no complete checkpoint")
        abstract = {"trainable": jax.tree.map(ocp.utils.to_shape_dtype_struct, trainable)}
        how = ocp.checkpoint_utils.construct_restore_args(abstract)
        args = ocp.args.Composite(state=ocp.args.PyTreeRestore(abstract, restore_args=how, partial_restore=True))
        return manager.restore(step, args=args).state["trainable"], step


def _saved(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "trainable": state.trainable, "opt_state": state.opt_state}
