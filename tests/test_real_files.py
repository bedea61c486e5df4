"""The commands run unchanged on the samples that the authors of Thoth published."""

import json

import pytest

from thoth_jax import cli
from thoth_jax.train.metrics import read_metrics

SHAPE = [
    "--config.model.hidden_size=32",
    "--config.model.intermediate_size=64",
    "--config.model.num_layers=2",
    "--config.model.head_dim=8",
]


@pytest.fixture(scope="module")
def demo(shared):
    path = shared / "data" / "thoth_demo"
    if not path.is_dir():
        pytest.skip("the published samples are not beside this checkout")
    return path


def train(stage, demo, out, file, *more):
    words = [
        "train",
        f"--config.stage={stage}",
        f"--config.run_dir={out / stage}",
        f"--config.task_args.train={demo / file}",
    ]
    assert cli.main([*words, *[f"--config.{word}" for word in more]]) == 0
    rows = [row for row in read_metrics(str(out / stage)) if row["kind"] == "train"]
    assert all(row["grad_norm"] >= 0 for row in rows)
    return rows


def test_all_stages_generate_score_and_evaluate(demo, shared, tmp_path, capsys):
    tokenizer = f"tokenizer={shared / 'golden' / 'qwen3_tokenizer'}"
    shape = [word.removeprefix("--config.") for word in SHAPE]
    common = (tokenizer, "num_steps=2", "max_completion_length=4", "eval_examples=2")
    rows = train("pretrain", demo, tmp_path, "demo_pretrain.json", *shape, *common, "max_length=128", "batch_size=8")
    assert rows[-1]["loss"] < 13.0
    start = ("init_from=" + str(tmp_path / "pretrain"), "lora.rank=2")
    train(
        "sft",
        demo,
        tmp_path,
        "demo_sft.json",
        *start,
        *common,
        "max_length=1024",
        "max_prompt_length=512",
        "batch_size=4",
    )
    start = ("init_from=" + str(tmp_path / "sft"), "kl_coef=0.001")
    more = ("prompts_per_step=2", "group_size=2", "max_prompt_length=512", "eval_at_start=false")
    rows = train("rl", demo, tmp_path, "demo_rl.jsonl", *start, *common, *more)
    assert rows[0]["kl"] == 0.0 and "rewards/mean" in rows[0]

    capsys.readouterr()
    gold, answers = str(demo / "demo_rl.jsonl"), str(tmp_path / "answers.jsonl")
    generate = ["generate", "--model", str(tmp_path / "rl"), "--input", gold, "--output", answers, "--max-tokens", "3"]
    assert cli.main(generate) == 0
    assert cli.main(["score", "--gold", gold, "--input", answers, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["mean"]["total"] == 0.0


@pytest.mark.parametrize("file", ["demo_sft.json", "demo_rl.jsonl"])
def test_gold_answers_against_themselves(demo, capsys, file):
    assert cli.main(["score", "--gold", str(demo / file), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["mean"]["total"] >= 2.3 and summary["mean"]["format_gate"] == 1.0
    assert cli.main(["evaluate", "--gold", str(demo / file), "--json"]) == 0
    overall = json.loads(capsys.readouterr().out)["overall"]
    assert (overall["content_score"], overall["order_strict"], overall["step_match"]) == (1.5, 1.0, 1.0)


def test_both_metadata_layouts_are_documents(demo, tmp_path):
    for file in ("Problem-Solving.jsonl", "Protocol-Comprehension.json"):
        out = tmp_path / file
        words = [word.removeprefix("--config.") for word in SHAPE]
        more = (
            "num_steps=1",
            "max_length=64",
            "batch_size=8",
            "max_completion_length=4",
            "eval_at_start=false",
            "eval_examples=1",
        )
        assert train("pretrain", demo, out, file, *words, *more)[0]["loss"] > 0
