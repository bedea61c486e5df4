"""The commands: help with working examples, bad input in one line with exit code 2."""

import json
import shlex

import pytest

from thoth_jax import cli

TINY = [
    "--config.model.hidden_size=32",
    "--config.model.intermediate_size=48",
    "--config.model.num_layers=2",
    "--config.model.head_dim=8",
    "--config.task_args.system_prompt=",
    "--config.max_completion_length=8",
    "--config.num_steps=2",
]


def run(capsys, *words):
    """(exit code, standard output, last line of standard error)."""
    try:
        code = cli.main(list(words))
    except SystemExit as leave:
        code = leave.code
    out, errors = capsys.readouterr()
    return code, out, (errors.strip().splitlines() or [""])[-1]


def refused(capsys, *words):
    code, _, line = run(capsys, *words)
    assert code == 2, line
    return line


def test_help_of_every_command_shows_an_example(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    for name in (
        "quickstart",
        "train",
        "generate",
        "score",
        "evaluate",
        "bench",
        "data",
        "data show",
        "data stats",
        "data build",
    ):
        assert name.split()[0] in out
        code, text, _ = run(capsys, *name.split(), "--help")
        assert code == 0 and f"example:\n  thoth {name}" in text


@pytest.fixture
def examples(capsys):
    def of(name):
        text = run(capsys, *name.split(), "--help")[1]
        return shlex.split(text.partition("example:\n")[2].strip())[1:]

    return of


def test_the_examples_work_as_pasted(examples, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *examples("score"))[0] == 0
    code, out, _ = run(capsys, *examples("evaluate"))
    assert code == 0 and json.loads(out)["overall"]["content_score"] == 1.5
    for name in ("data", "data show", "data stats", "data build"):
        code, out, _ = run(capsys, *examples(name))
        assert code == 0 and max(map(len, out.split("\n"))) <= 100, name
    assert out.count("equal to the shipped file") == 5 and (tmp_path / "runs/corpus/items.jsonl").exists()


@pytest.mark.slow
def test_the_train_and_generate_examples_work_as_pasted(examples, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *examples("train"))[0] == 0
    code, out, _ = run(capsys, *examples("generate"))
    assert code == 0 and len(out) > 1  # five steps teach it little: it may well be blank lines


def test_dry_run_prints_configuration_objective_and_shapes_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(
        capsys, "train", "--config.stage=rl", *TINY, "--config.kl_coef=0.1", "--config.lora.rank=2", "--dry-run"
    )
    assert code == 0 and '"kl_coef": 0.1' in out and "objective:" in out and "8 prompts x 8 samples" in out
    assert "trained of" in out and list(tmp_path.iterdir()) == []


def test_keys_of_a_stage(capsys):
    code, out, _ = run(capsys, "train", "--keys", "rl")
    assert code == 0 and "group_size = 8" in out and "batch_size" not in out


def test_unknown_arguments_and_keys(capsys):
    assert "did you mean 'learning_rate'" in refused(capsys, "train", "--config.learning_rat=1")
    assert "unknown argument '--confg=x'" in refused(capsys, "train", "--confg=x")
    assert "unknown argument '--config.a=1'" in refused(capsys, "score", "--gold", "bundled", "--config.a=1")
    assert "no such file" in refused(capsys, "train", "--config=none.py")


def test_bad_input_of_the_data_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "thoth data: no row with id 'x'" in refused(capsys, "data", "show", "x")
    assert "types: constraint, overview_qa" in refused(capsys, "data", "show", "--type", "plan")
    assert "--number: '0': expected a whole number" in refused(capsys, "data", "show", "--number", "0")
    assert "none.jsonl: no such file" in refused(capsys, "data", "stats", "--input", "none.jsonl")
    assert "no such directory" in refused(capsys, "data", "build", "--source", "none")
    assert "https://... is no path" in refused(capsys, "score", "--gold", "https://host/rows.jsonl")
    (tmp_path / "rows.jsonl").write_text(json.dumps(SFT_ROW) + "\n" + json.dumps({"query": "q"}) + "\n")
    assert "rows.jsonl:2: no field 'response'" in refused(capsys, "data", "show", "--input", "rows.jsonl")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.yaml").write_text("- name: x\n")
    assert "a.yaml: protocol 1 (x): no field 'aim'" in refused(capsys, "data", "build", "--source", "source")
    assert run(capsys, "data")[0] == 2


def test_show_prints_rows_of_any_format(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(SFT_ROW) + "\n")
    code, out, _ = run(capsys, "data", "show", "--input", "rows.jsonl")
    assert code == 0 and "question   q" in out and "answer     a" in out
    code, out, _ = run(capsys, "data", "show", "--type", "planning", "--split", "test")
    assert code == 0 and "step 2" in out and "note" in out and ", test, " in out
    assert json.loads(run(capsys, "data", "stats", "--json")[1])["items"] > 700


SFT_ROW = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": ""}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "rows.jsonl"),
        ('{"query": "q"\n', "rows.jsonl:1"),
        (json.dumps({"query": "q", "response": "r"}) + "\nnot json\n", "rows.jsonl:2"),
        (json.dumps({"query": "q"}) + "\n", "'response'"),
        (json.dumps({"conversations": [{"from": "human", "value": "q"}]}) + "\n", "conversations"),
    ],
    ids=["empty", "cut", "garbage", "field", "turn"],
)
def test_bad_data_names_file_line_and_field(capsys, tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(text)
    line = refused(capsys, "train", "--config.stage=sft", "--config.task_args.train=rows.jsonl", *TINY)
    assert expected in line and "rows.jsonl" in line


def test_skip_bad_counts_lists_and_goes_on(capsys, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps(SFT_ROW), "not json", json.dumps(SFT_ROW), json.dumps({"query": "q"})]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    words = [
        "train",
        "--config.stage=sft",
        "--config.task_args.train=rows.jsonl",
        *TINY,
        "--config.max_length=64",
        "--dry-run",
    ]
    assert "rows.jsonl:2" in refused(capsys, *words)
    with caplog.at_level("WARNING"):
        assert run(capsys, *words, "--skip-bad")[0] == 0
    assert "2 bad rows skipped" in caplog.text and "rows.jsonl:2" in caplog.text and "rows.jsonl:4" in caplog.text


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_prompt_over_the_limit_is_refused_truncated_or_dropped(capsys, tmp_path, monkeypatch, caplog, stage):
    monkeypatch.chdir(tmp_path)
    gold = '<key>\nStep 1: {"action": "mix", "objects": [], "parameters": []}\n</key>'
    long = {"query": "how long " * 60, "response": gold}
    short = {"query": "q", "response": gold}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (long, short, short)))
    data = ["--config.task_args.train=rows.jsonl", "--config.task_args.eval=rows.jsonl"]
    words = ["train", f"--config.stage={stage}", *data, *TINY, "--config.max_prompt_length=40", "--dry-run"]
    assert "example '0'" in (line := refused(capsys, *words)) and "max_prompt_length=40" in line
    for policy, expected in (("truncate", "1 truncated, 0 dropped"), ("drop", "0 truncated, 1 dropped")):
        with caplog.at_level("WARNING"):
            assert run(capsys, *words, f"--config.too_long={policy}")[0] == 0
        assert expected in caplog.text


@pytest.mark.parametrize(
    "words, expected",
    [
        (
            ["generate", "--model", "m", "--prompt", "q", "--max-tokens", "0"],
            "--max-tokens: '0': expected a whole number",
        ),
        (["generate", "--model", "m", "--prompt", "q", "--seed", str(2**64)], "--seed: "),
        (["generate", "--model", "m", "--prompt", "q", "--top-p", "2"], "--top-p: '2': expected a number from 0 to 1"),
        (["generate", "--model", "m", "--prompt", "q", "--output", "o"], "--output is for the answers to --input"),
        (["generate", "--model", "m", "--input", "i"], "--input needs --output"),
        (["generate", "--model", "m"], "one of the arguments --prompt --input is required"),
        (["score", "--gold", "."], ".: it is a directory"),
        (["train", "--config", "."], "no such file"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["train", "--config.task=builtins:max"], "max: expected a function or a class that is written in Python"),
        (["train", "--config.task=os:sep"], "expected a class or a function that makes a Task"),
        (["train", "--config.stage=rl", '--config.rewards=[{"fn": "builtins:max"}]'], "written in Python"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(words)
    except SystemExit as leave:
        code = leave.code
    errors = capsys.readouterr().err
    assert code == 2 and expected in errors and errors.count("\n") == 1


def test_what_a_task_raises_is_one_line_that_names_its_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_task_f.py").write_text("class T:\n    def __init__(self):\n        open('/no/such/file')\n")
    line = refused(capsys, "train", "--config.task=own_task_f:T")
    assert "own_task_f.py:3: FileNotFoundError" in line


def test_a_model_directory_without_weights(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "nowhere: no such directory" in refused(capsys, "generate", "--model", "nowhere", "--prompt", "q")
    (tmp_path / "model").mkdir()
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 64,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps(fields))
    assert (
        "model" in (line := refused(capsys, "generate", "--model", "model", "--prompt", "q")) and "safetensors" in line
    )
    assert "safetensors" in refused(capsys, "train", "--config.stage=sft", "--config.init_from=model", *TINY)


def test_score_and_evaluate_predictions_from_a_file(capsys, tmp_path):
    gold = {
        "id": "a",
        "question": "q",
        "key": 'Step 1: {"action": "mix", "objects": ["x"], "parameters": []}',
        "orc": "Step 1: Mix x.",
    }
    (tmp_path / "gold.jsonl").write_text(json.dumps(gold) + "\n")
    (tmp_path / "out.jsonl").write_text(json.dumps({"id": "a", "output": "no protocol"}) + "\n")
    files = ["--gold", str(tmp_path / "gold.jsonl"), "--input", str(tmp_path / "out.jsonl")]
    code, out, _ = run(capsys, "score", *files, "--json", "--output", str(tmp_path / "rows.jsonl"))
    assert code == 0 and json.loads(out)["mean"]["total"] == 0.0
    assert json.loads((tmp_path / "rows.jsonl").read_text())["id"] == "a"
    assert run(capsys, "evaluate", *files, "--json")[0] == 0
    (tmp_path / "out.jsonl").write_text(json.dumps({"id": "b", "output": "x"}) + "\n")
    assert "'a'" in refused(capsys, "score", *files) or "'b'" in refused(capsys, "score", *files)
    assert (
        "no such directory"
        in (line := refused(capsys, "score", "--gold", "bundled", "--output", str(tmp_path / "no" / "rows.jsonl")))
        or str(tmp_path) in line
    )
