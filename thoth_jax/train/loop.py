"""The one trainer loop of all stages: restore, evaluate, step, log, save; stop cleanly when told to."""

import json
import logging
import signal
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from tqdm import tqdm

from thoth_jax import config as configuration
from thoth_jax.errors import InputError
from thoth_jax.plugins import user_error
from thoth_jax.sharding import any_process, is_leader, meet, use_mesh
from thoth_jax.train.build import Run, build, save_policy_files
from thoth_jax.train.checkpoint import Checkpoints
from thoth_jax.train.lm import LmStage
from thoth_jax.train.metrics import Metrics
from thoth_jax.train.policy import RlStage
from thoth_jax.train.sampling import write_samples
from thoth_jax.train.state import TrainState, create_state

logger = logging.getLogger(__name__)

STAGES = {"pretrain": LmStage, "sft": LmStage, "rl": RlStage}
DONE, PREEMPTED = 0, 75


class Stopped:
    """True once SIGTERM or SIGINT has arrived; polled between steps and between decode chunks.

    Of several processes it is enough that one was told, and all answer alike: they poll at the same points.
    """

    def __init__(self):
        self._arrived: float | None = None
        self._all = False

    def __call__(self) -> bool:
        self._all = self._all or any_process(self._arrived is not None)
        return self._all

    def __enter__(self):
        def handle(_number, _frame):
            now = time.monotonic()
            if self._arrived is None:
                self._arrived = now
            elif now - self._arrived > 1.0:  # supervisors that signal a whole process group send the first one twice
                raise KeyboardInterrupt  # asked again: do not wait for the step to end

        self._before = {}
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, handle)
        except ValueError:
            pass  # not the main thread (a notebook's worker): signals stay with their owner
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)


def dry_run(config) -> str:
    """The resolved configuration, the objective as a formula and the shapes; nothing is written or trained."""
    run = build(config)
    with use_mesh(run.mesh):
        stage = STAGES[config.stage](run)
    devices = ", ".join(f"{name} {size}" for name, size in run.mesh.shape.items())
    trained = run.params if run.lora is None else run.lora
    counts = f"{_count(trained):,} trained of {_count(run.params) + (_count(run.lora) if run.lora else 0):,} parameters"
    return f"{configuration.to_json(config)}{stage.describe()}\npolicy: {counts}\nmesh: {devices}"


def train(config, *, allow_config_change: bool = False) -> int:
    """Run a stage to its end, from its newest checkpoint if there is one.

    Writes RUN/config.json, policy/, metrics.jsonl, tensorboard/, checkpoints/, samples/, log.txt, then summary.json.

    Returns:
      0 when done, 75 when a signal stopped it with a checkpoint saved.

    Raises:
      InputError: see `build`; or the run directory belongs to a run with another configuration.
      FloatingPointError: the loss, the gradient or a parameter is not finite; the newest checkpoint is from before it.
    """
    run_dir = configuration.run_dir_of(config)
    directory = epath.Path(run_dir)
    _check_same_run(config, directory, allow_config_change)
    run = build(config)
    with use_mesh(run.mesh):
        stage = STAGES[config.stage](run)
        _prepare(run, directory)
        to_file = "://" not in run_dir and is_leader()
        handler = logging.FileHandler(directory / "log.txt") if to_file else logging.NullHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("thoth_jax").addHandler(handler)
        try:
            with Stopped() as stopped:
                return _loop(run, stage, run_dir, stopped)
        except Exception:
            handler.handle(logging.LogRecord(__name__, logging.ERROR, __file__, 0, "failed", None, sys.exc_info()))
            raise
        finally:
            logging.getLogger("thoth_jax").removeHandler(handler)
            handler.close()


def _check_same_run(config, directory: epath.Path, allow_change: bool) -> None:
    """A run directory continues only under the configuration that it was started with."""
    file = directory / "config.json"
    checkpoints = directory / "checkpoints"
    if allow_change or not file.exists() or not checkpoints.exists() or not any(checkpoints.iterdir()):
        return  # nothing has been trained there yet
    try:
        before = configuration.flatten(json.loads(file.read_text()))
    except (ValueError, AttributeError):
        raise InputError(f"{file}: not a run's configuration; use another run_dir, or --allow-config-change") from None
    now = configuration.flatten(json.loads(configuration.to_json(config)))
    # The directory may have been moved; the rest decides what is trained and when it is looked at.
    changed = [
        name for name in sorted(set(before) | set(now)) if before.get(name) != now.get(name) and name != "run_dir"
    ]
    if changed:
        shown = "; ".join(f"{name}: {before.get(name)!r} there, {now.get(name)!r} here" for name in changed)
        raise InputError(
            f"{file}: this run was started with another configuration ({shown}); "
            "use another run_dir, or --allow-config-change"
        )


def _prepare(run: Run, directory: epath.Path) -> None:
    if is_leader():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _write(directory / "config.json", configuration.to_json(run.config))
        except OSError as error:
            raise InputError(f"run_dir={str(directory)!r}: cannot write there: {error.strerror}") from None
        save_policy_files(run, str(directory))
    meet("the run directory is there")


def _loop(run: Run, stage, run_dir: str, stopped: Callable[[], bool]) -> int:
    config = run.config
    state = create_state(run.params, run.lora, stage.optimizer, run.mesh)
    checkpoints = Checkpoints(
        run_dir, config.keep_checkpoints, (config.keep_best, config.best_metric, config.best_mode)
    )
    start = 0
    if restored := checkpoints.restore(state):
        state, start = restored[0], restored[1]["step"]
        stage.resume(restored[1].get("sampling"), start)
        logger.info("continuing from step %d of %d", start, stage.num_steps)
    metrics = Metrics(run_dir, start)
    saved = start
    run.params = run.lora = None  # the state owns the arrays now, and the first update gives these away
    evaluated: dict | None = None

    def due(step: int) -> bool:
        if step == 0:
            return config.eval_at_start
        return step == stage.num_steps or bool(config.eval_every and step % config.eval_every == 0)

    def save(step: int) -> None:
        nonlocal saved
        if not bool(_all_finite(state.trainable)):
            raise FloatingPointError(f"step {step}: a parameter is not finite; the newest checkpoint is from before it")
        position = {"step": step, "config": json.loads(configuration.to_json(config)), "sampling": stage.position()}
        checkpoints.save(step, state, position, evaluated)
        saved = step

    try:
        if due(start) and not metrics.has(start, "eval"):  # at the start, or a signal came before it was done
            evaluated = _evaluate(stage, state, start, run_dir, metrics, stopped)
        bar = tqdm(
            total=stage.num_steps,
            initial=start,
            desc=config.stage,
            unit="step",
            file=sys.stderr,
            dynamic_ncols=True,
            disable=not is_leader(),
        )
        skipped = 0
        for index in range(start, stage.num_steps):
            if stopped():
                break
            began = time.perf_counter()
            try:
                result = stage.step(state, index, stopped)
            except Exception as error:
                if saved < index and (isinstance(error, InputError) or user_error(error)):
                    save(index)  # a reward that fails now and then costs one step, not all since the last checkpoint
                raise
            if result is None:
                break
            state, values = result
            values = {name: float(value) for name, value in values.items()}
            seconds = time.perf_counter() - began
            values.update({"step_time/total": seconds, "tokens_per_sec": values.pop("tokens") / seconds})
            step = index + 1
            metrics.write(step, "train", values)
            skipped = _skipped(values, step, skipped, config.stop_after_skipped, stage.batch, run_dir)
            bar.set_postfix_str(_headline(values), refresh=False)
            bar.update()
            evaluated = _evaluate(stage, state, step, run_dir, metrics, stopped) if due(step) else None
            judged = config.keep_best and evaluated is not None
            if step == stage.num_steps or step % config.save_every == 0 or judged:
                save(step)
        bar.close()
        done = int(state.step) // stage.updates_per_step
        if saved < done < stage.num_steps:
            save(done)
        summary = epath.Path(run_dir) / "summary.json"
        if done == stage.num_steps and evaluated is None and not summary.exists() and not stopped():
            evaluated = _evaluate(stage, state, done, run_dir, metrics, stopped)  # it died between last save and end
    finally:
        metrics.close()
        checkpoints.close()
    if done < stage.num_steps or (evaluated is None and not summary.exists()):
        logger.warning("stopped by a signal at step %d of %d, saved; the same command continues", done, stage.num_steps)
        return PREEMPTED
    if evaluated is not None and is_leader():  # None: a finished run was started again
        _write(summary, json.dumps({"steps": stage.num_steps, "eval": evaluated}, indent=2, sort_keys=True) + "\n")
    return DONE


def _evaluate(stage, state: TrainState, step: int, run_dir: str, metrics: Metrics, stopped) -> dict | None:
    began = time.perf_counter()
    result = stage.evaluate(state, stopped)
    if result is None:
        return None
    values, rows = result
    values = {name: float(value) for name, value in values.items()}
    metrics.write(step, "eval", {**values, "step_time/eval": time.perf_counter() - began})
    if is_leader():
        write_samples(run_dir, step, rows)
    logger.info("step %d: eval %s", step, _headline(values))
    return values


def _skipped(values: dict[str, float], step: int, before: int, most: int, batch: dict, run_dir: str) -> int:
    """How many steps in a row have been skipped, since their loss or gradient was not finite.

    Such a step changes no parameter (see `apply_update`). Its batch is kept in RUN/skipped/STEP.npz.

    Raises:
      FloatingPointError: `most` in a row.
    """
    names = [name for name in ("loss", "loss/policy", "grad_norm") if not np.isfinite(values.get(name, 0.0))]
    if not names:
        return 0
    file = epath.Path(run_dir) / "skipped" / f"{step}.npz"
    if is_leader():
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            np.savez_compressed(stream, **batch)
    said = f"step {step}: {names[0]} is {values[names[0]]}"
    if before + 1 >= most:
        raise FloatingPointError(
            f"{said}, the {before + 1}. step in a row without an update; the newest checkpoint is from before it, "
            f"the batches are in {file.parent}"
        )
    logger.warning("%s: no update; the batch is in %s", said, file)
    return before + 1


@jax.jit
def _all_finite(tree) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _headline(values: dict[str, float]) -> str:
    shown = ("loss", "rewards/mean", "score", "kl", "format_rate", "grad_norm", "lr")
    return " ".join(f"{name}={values[name]:.3g}" for name in shown if name in values)


def _write(file: epath.Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = file.parent / f"{file.name}.tmp"
    temporary.write_text(text)
    temporary.replace(file)


def _count(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
