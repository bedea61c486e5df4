"""Checkpoints of a run through Orbax: trained leaves, optimiser, position. Asynchronous, atomic, verified when read."""

import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

from thoth_jax.errors import InputError, first_line
from thoth_jax.sharding import is_leader, meet
from thoth_jax.train.state import TrainState

logger = logging.getLogger(__name__)


class Checkpoints:
    """RUN/checkpoints/STEP, the newest `keep` of them, and the best.

    A step is complete or invisible: Orbax writes to a temporary directory and renames it. In a LoRA run only the
    adapters and their moments are saved; the base is what the run started from.
    """

    def __init__(self, run_dir: str, keep: int, best: tuple[int, str, str] = (0, "", "max")):
        """Set up.

        Args:
          keep: newest steps that stay.
          best: (number, metric, "max" or "min"): so many steps with the best value of a metric of `save` stay, too.
        """
        number, self._metric, mode = best
        sign = 1.0 if mode == "max" else -1.0

        def value(metrics):
            found = sign * metrics[self._metric]
            return found if math.isfinite(found) else -math.inf

        policies = [ocp.checkpoint_managers.LatestN(keep)]
        if number:
            policies.append(
                ocp.checkpoint_managers.BestN(get_metric_fn=value, n=number, keep_checkpoints_without_metrics=False)
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy(policies),
            best_fn=value if number else None,  # without it metrics are not stored
            enable_async_checkpointing=True,
        )
        self._run_dir = epath.Path(run_dir).absolute()
        handlers = {"state": ocp.StandardCheckpointHandler(), "position": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self._run_dir / "checkpoints", options=options, item_handlers=handlers)

    def save(
        self, step: int, state: TrainState, position: dict[str, Any], metrics: dict[str, float] | None = None
    ) -> None:
        """Start writing step `step` in the background; an error of the write before this one is raised here.

        Args:
          metrics: of the evaluation of this step, if there was one.

        Raises:
          InputError: `best` names a metric that they do not have.
        """
        if step in self._manager.all_steps():
            return
        if self._metric and metrics is not None and self._metric not in metrics:
            raise InputError(f"best_metric={self._metric!r}: evaluations have {', '.join(sorted(metrics))}")
        saved = _saved(state)
        position = {**position, "checksums": _checksums(saved)}
        args = ocp.args.Composite(state=ocp.args.StandardSave(saved), position=ocp.args.JsonSave(position))
        self._manager.save(step, args=args, metrics=metrics if self._metric else None)

    def restore(self, state: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Fill `state` (its shapes and shardings) from the newest step that is whole.

        A step that cannot be read, or that holds other numbers than were written, is moved to RUN/damaged and the one
        before it is taken.

        Returns:
          The state and the position that was saved with it; None if there is no checkpoint.

        Raises:
          InputError: no step is whole; or the newest one holds other shapes than the configuration makes.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                return self._read(state, step)
            except (InputError, MemoryError, jax.errors.JaxRuntimeError):
                raise  # another configuration, or no room for it: the file is not to blame
            except Exception as error:  # whatever a broken file makes Orbax raise
                self._set_aside(step, error)
        if steps:
            raise InputError(
                f"{self._run_dir}: no checkpoint is whole (steps {', '.join(map(str, steps))} were moved to its "
                "directory damaged/); put one back, or start again in another run_dir"
            )
        return None

    def _read(self, state: TrainState, step: int) -> tuple[TrainState, dict[str, Any]]:
        saved = _saved(state)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, saved)
        self._check_shapes(abstract, step)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), position=ocp.args.JsonRestore())
        restored = self._manager.restore(step, args=args)
        if _differs(restored):
            raise ValueError("it holds other numbers than were written")
        saved = restored.state
        state = state.with_trainable(saved["trainable"]).replace(step=saved["step"], opt_state=saved["opt_state"])
        return state, restored.position

    def _check_shapes(self, abstract: Any, step: int) -> None:
        """Another configuration's checkpoint is not a damaged one."""
        metadata = self._manager.item_metadata(step).state
        found = sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(metadata.tree))
        wanted = sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(abstract))
        if found != wanted:
            other = next((a, b) for a, b in zip([*found, None], [*wanted, None], strict=False) if a != b)
            raise InputError(
                f"{self._run_dir / 'checkpoints' / str(step)}: it holds {len(found)} arrays, the configuration makes "
                f"{len(wanted)}, and their shapes differ (for example {other[0]} there, {other[1]} here); model.* and "
                "lora.* of a run cannot change"
            )

    def _set_aside(self, step: int, error: Exception) -> None:
        source = self._run_dir / "checkpoints" / str(step)
        target = self._run_dir / "damaged" / str(step)
        if is_leader():
            target.parent.mkdir(parents=True, exist_ok=True)
            while target.exists():
                target = target.parent / f"{target.name}_"
            source.rename(target)
        meet("damaged checkpoint set aside")
        self._manager.reload()
        logger.warning("checkpoint %d is damaged (%s): moved to %s", step, first_line(error)[:100], target)

    def close(self) -> None:
        """Wait for the last write; raises its error."""
        self._manager.wait_until_finished()
        self._manager.close()


def newest_step(run_dir: str) -> int | None:
    """The newest checkpoint of a run, None without one."""
    directory = epath.Path(run_dir) / "checkpoints"
    if not directory.exists():
        return None
    return max((int(path.name) for path in directory.iterdir() if path.name.isdecimal()), default=None)


def restore_trainable(run_dir: str, trainable: Any, step: int | None = None) -> Any:
    """The trained leaves of a run's checkpoint, without its optimiser.

    Args:
      trainable: tree of arrays with the shapes and shardings wanted.
      step: None: the newest.

    Raises:
      InputError: the run has no such checkpoint, or it is damaged.
    """
    directory = epath.Path(run_dir).absolute() / "checkpoints"
    newest = newest_step(run_dir)
    if newest is None:
        raise InputError(f"{run_dir}: the run has saved no weights yet")
    step = newest if step is None else step
    if not (directory / str(step)).exists():
        raise InputError(f"{directory / str(step)}: this checkpoint is gone (keep_checkpoints of that run removed it?)")
    abstract = {"trainable": jax.tree.map(ocp.utils.to_shape_dtype_struct, trainable)}
    how = ocp.checkpoint_utils.construct_restore_args(abstract)
    args = ocp.args.Composite(
        state=ocp.args.PyTreeRestore(abstract, restore_args=how, partial_restore=True), position=ocp.args.JsonRestore()
    )
    try:
        with ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(read_only=True)) as manager:
            restored = manager.restore(step, args=args)
        if _differs(restored):
            raise ValueError("it holds other numbers than were written")
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # whatever a broken file makes Orbax raise
        reason = first_line(error)[:100]
        raise InputError(
            f"{directory / str(step)}: the checkpoint is damaged ({reason}); remove it to use the one before"
        ) from error
    return restored.state["trainable"]


def _saved(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "trainable": state.trainable, "opt_state": state.opt_state}


def _differs(restored) -> bool:
    """Whether arrays that were read are not those that were written."""
    written = restored.position.get("checksums", {})
    return any(written.get(name, value) != value for name, value in _checksums(restored.state).items())


def _checksums(tree: Any) -> dict[str, int]:
    """{path: sum of the bits modulo 2^32} of every array; integers, so the same on every sharding."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    return dict(zip(names, map(int, jax.device_get(_bit_sums([leaf for _, leaf in leaves]))), strict=True))


@jax.jit
def _bit_sums(leaves: list[jax.Array]) -> list[jax.Array]:
    def one(leaf):
        unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        bits = leaf.astype(jnp.uint8) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, unsigned)
        return jnp.sum(bits.astype(jnp.uint32), dtype=jnp.uint32)

    return [one(leaf) for leaf in leaves]
