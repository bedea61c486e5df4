"""`thoth quickstart`: a tiny policy goes through all three stages on the bundled corpus."""

import json
import logging

from etils import epath

from thoth_jax import config as configuration
from thoth_jax.sharding import use_mesh
from thoth_jax.train.build import Run, build
from thoth_jax.train.loop import DONE, train
from thoth_jax.train.sampling import Answerer, prompts_of

logger = logging.getLogger(__name__)

# Sized so that all three stages and their compilation take about three minutes on two CPU cores.
_COMMON = {
    "task_args": {"system_prompt": ""},
    "model.hidden_size": 96,
    "model.intermediate_size": 256,
    "model.num_layers": 2,
    "model.head_dim": 24,
    "save_every": 100,
    "eval_examples": 16,
    "max_completion_length": 192,
}
# Items that SFT and RL see: few enough to be memorised, so that reinforcement learning starts from some reward.
_SEEN = 12
STAGES = {
    "pretrain": {
        "num_steps": 60,
        "batch_size": 8,
        "max_length": 128,
        "learning_rate": 3e-3,
        "max_completion_length": 32,
    },
    "sft": {
        "num_steps": 240,
        "train_examples": _SEEN,
        "batch_size": 4,
        "max_length": 416,
        "packing": False,
        "learning_rate": 3e-3,
    },
    "rl": {
        "num_steps": 12,
        "train_examples": _SEEN,
        "prompts_per_step": 4,
        "group_size": 8,
        "learning_rate": 1e-4,
        "save_every": 4,
    },
}

# Columns of the table and their heading.
_COLUMNS = {
    "format_rate": "format",
    "consistency_rate": "consist.",
    "score": "SCORE",
    "step_match": "Step-M",
    "order_strict": "Order-S",
    "order_lcs": "Order-LCS",
    "content_score": "Sem-A",
    "steps": "steps",
}


def quickstart(out: str = "runs/quickstart", seed: int = 0) -> int:
    """Run the stages that are not finished yet, then write and print OUT/summary.json as a table.

    Returns:
      An exit code as `train.loop.train`.
    """
    directory = epath.Path(out)
    previous, summary = "", {}
    for stage, keys in STAGES.items():
        run_dir = str(directory / stage)
        config = configuration.load(
            None, [f"stage={stage}"], {**_COMMON, **keys, "seed": seed, "run_dir": run_dir, "init_from": previous}
        )
        logger.info("stage %s -> %s", stage, run_dir)
        code = train(config)  # a finished stage returns at once, if the configuration is still the same
        if code != DONE:
            return code
        summary[stage] = _judge(config, run_dir)
        previous = run_dir
    (directory / "summary.json").write_text(json.dumps({"stages": summary}, indent=2) + "\n")
    print(table(summary))
    print(f"\nruns, metrics, samples and checkpoints: {out}")
    return DONE


def _judge(config, run_dir: str) -> dict[str, dict[str, float]]:
    """Greedy answers of a finished stage to items it saw and to validation items, judged by the Task, once."""
    file = epath.Path(run_dir) / "judged.json"
    if file.exists():
        return json.loads(file.read_text())
    frozen = configuration.load(None, ["stage=rl"], {"init_from": run_dir, "task_args": config.task_args.to_dict()})
    run = build(frozen)
    found = {}
    with use_mesh(run.mesh):
        for name, split in (("seen", "train"), ("unseen", "eval")):
            found[name] = _metrics(run, split)
    file.write_text(json.dumps(found, indent=2) + "\n")
    return found


def _metrics(run: Run, split: str) -> dict[str, float]:
    encoded = prompts_of(run, split, _SEEN)
    completions = Answerer(run, encoded.prompts, run.config.max_prompt_length)(run.params, run.lora, lambda: False)
    return {**run.task.evaluate(encoded.examples, completions), "items": len(encoded.examples)}


def table(summary: dict[str, dict[str, dict[str, float]]]) -> str:
    """The stages as a table of at most 100 columns: items seen in training above, unseen ones below."""
    lines = [f"{'stage':<10}{'items':<12}" + "".join(f"{heading:>10}" for heading in _COLUMNS.values())]
    for name in ("seen", "unseen"):
        for stage, judged in summary.items():
            row = judged[name]
            lines.append(
                f"{stage:<10}{row['items']:<3} {name:<8}" + "".join(f"{row[metric]:>10.3f}" for metric in _COLUMNS)
            )
    lines.append(
        "A smoke run: every stage works, and a few items are memorised. What helps unseen items takes far more steps."
    )
    return "\n".join(lines)
