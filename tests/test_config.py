"""Configuration: files, typed overrides, unknown keys, limits."""

import json

import pytest

from thoth_jax import config as configuration
from thoth_jax.config_presets import ELSEWHERE
from thoth_jax.errors import InputError


def refused(*overrides: str, path: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        configuration.load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_differ_by_stage():
    assert configuration.load(None, ["stage=rl"]).schedule == "constant"
    assert configuration.load(None, ["stage=sft"]).schedule == "cosine"
    assert "group_size" not in configuration.defaults("sft")


def test_every_key_has_one_line_of_help_and_is_described():
    for stage in configuration.STAGES:
        text = configuration.describe(stage)
        for name, key in configuration.keys_of(stage).items():
            assert key.help and "\n" not in key.help
            assert f"  {name} = " in text


@pytest.mark.parametrize(
    "override, name, value",
    [
        ("learning_rate=3e-4", "learning_rate", 3e-4),
        ("learning_rate=1", "learning_rate", 1.0),
        ("packing=false", "packing", False),
        ("packing=True", "packing", True),
        ("num_steps=7", "num_steps", 7),
        ("run_dir=runs/a=b", "run_dir", "runs/a=b"),
    ],
)
def test_overrides_take_the_type_of_the_key(override, name, value):
    found = configuration.load(None, [override])[name]
    assert found == value and type(found) is type(value)


def test_nested_tuple_optional_and_json_overrides():
    config = configuration.load(
        None,
        [
            "stage=rl", "lora.targets=q_proj,v_proj", "aggregation=constant", "constant=64",
            'rewards=[{"fn": "task", "weight": 0.5}]', "model.num_layers=2",
        ],
    )  # fmt: skip
    assert config.lora.targets == ("q_proj", "v_proj")
    assert config.constant == 64.0
    assert config.rewards == ({"fn": "task", "weight": 0.5},)
    assert config.model.num_layers == 2
    assert configuration.load(None, ["stage=rl", "constant=none"]).constant is None


def test_task_args_take_types_from_the_signature():
    config = configuration.load(
        None,
        ["task_args.train=5", "task_args.holdout=0.5", "task_args.skip_bad=true", 'task_args.score={"max_words": 20}'],
    )
    assert config.task_args.to_dict() == {"train": "5", "holdout": 0.5, "skip_bad": True, "score": {"max_words": 20}}


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["learning_rat=1"], "unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        (["lora.rnk=1"], "did you mean 'lora.rank'?"),
        (["kl_cof=1"], "did you mean 'kl_coef'?"),
        (["group_size=4"], "read by stage rl only, this run has stage sft"),
        (["stage=rl", "batch_size=4"], "read by stage pretrain and sft only"),
        (["stage=slt"], "did you mean 'sft'?"),
        (["model=1"], "'model' is a group of keys: set model.hidden_size"),
        (["learning_rate=fast"], "expected a number"),
        (["num_steps=1.5"], "expected a whole number"),
        (["packing=maybe"], "expected true or false"),
        (["stage=rl", "group_size=1"], "must be at least 2"),
        (["lora.dropout=1.5"], "must be at most 0.99"),
        (["stage=rl", "kl_estimator=k4"], "kl_estimator='k4'; valid: abs, k1, k2, k3"),
        (["learning_rate=nan"], "expected a finite number"),
        (["learning_rate=inf"], "expected a finite number"),
        (["adam_b1=1.0"], "must be at most 0.9999"),
        (["model.num_heads=4", "model.num_kv_heads=3"], "not a multiple"),
        (["model.head_dim=31"], "must be even"),
        (["mesh.data=-1"], "at most one axis can be -1"),
        (["mesh.tensor=0"], "must be a positive number"),
        (["stage=rl", "aggregation=constant"], "needs the key constant"),
        (["stage=rl", "constant=5"], "read only with aggregation=constant"),
        (["num_epochs=0"], "nothing to train"),
        (["task_args.trian=x"], "did you mean 'train'?"),
        (["task_args.holdout=much"], "expected a number"),
        (["stage=rl", "rewards=nonsense"], "expected JSON"),
        (["task=no_such_module:Task", "task_args.a=1"], "no module 'no_such_module'"),
        (["noequals"], "expected --config.KEY=VALUE"),
        ([f"seed={2**64}"], "must be at most 2147483647"),
        (["seed=-1"], "must be at least 0"),
        (["num_steps=1e99"], "expected a whole number"),
        ([f"num_steps={10**30}"], "must be at most 2147483647"),
        (["task_args.score=[1]"], "task_args.score=[1]: expected a mapping or null, got list"),
        (["task_args.skip_bad=1"], "expected true or false, got int"),
    ],
)
def test_faults_are_one_clear_line(overrides, expected):
    assert expected in refused(*overrides)


def test_a_file_starts_from_the_defaults_and_overrides_win(tmp_path):
    file = tmp_path / "c.py"
    file.write_text(
        "from thoth_jax.config import defaults\ndef get_config():\n    c = defaults('rl')\n    c.kl_coef = 0.1\n"
        "    c.task_args.holdout = 0.2\n    return c\n"
    )
    config = configuration.load(str(file), ["kl_coef=0.2"])
    assert (config.stage, config.kl_coef, config.task_args.holdout) == ("rl", 0.2, 0.2)


@pytest.mark.parametrize(
    "body, line, expected",
    [
        ("c.kl_cof = 1\n", 4, "unknown key 'kl_cof'; did you mean 'kl_coef'?"),
        ("c.model.hiden_size = 1\n", 4, "unknown key 'hiden_size'; did you mean 'hidden_size'?"),
        ("c.kl_coef = c.lora.rnk\n", 4, "unknown key 'rnk'; did you mean 'rank'?"),
        ("raise SystemExit(0)\n", 4, "it ends the process"),
        ("c.kl_coef = 1 / 0\n", 4, "division by zero"),
        ("c.kl_coef = (\n", 4, "never closed"),
    ],
)
def test_a_fault_inside_a_file_names_its_line(tmp_path, body, line, expected):
    file = tmp_path / "c.py"
    file.write_text(
        f"from thoth_jax.config import defaults\ndef get_config():\n    c = defaults('rl')\n    {body}    return c\n"
    )
    message = refused(path=str(file))
    assert message.startswith(f"{file}:{line}:") and expected in message


def test_a_wrong_value_inside_a_file_is_refused(tmp_path):
    file = tmp_path / "c.py"
    file.write_text(
        "from thoth_jax.config import defaults\ndef get_config():\n    c = defaults('rl')\n"
        "    c.group_size = 'many'\n    return c\n"
    )
    assert "group_size='many': expected int" in refused(path=str(file))


def test_values_that_no_json_holds_are_refused(tmp_path):
    file = tmp_path / "c.py"
    head = "import pathlib\nfrom thoth_jax.config import defaults\ndef get_config():\n    c = defaults('rl')\n"
    file.write_text(f"{head}    c.task_args.train = pathlib.Path('a')\n    return c\n")
    assert "task_args.train=PosixPath('a'): expected a text, number" in refused(path=str(file))
    binary = tmp_path / "c.json"
    binary.write_bytes(b'{"stage": "\xff"}')
    assert "not a JSON text in UTF-8" in refused(path=str(binary))


def test_lists_of_names_may_be_one_text(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"stage": "sft", "lora": {"targets": "all"}, "task_args": {"system_prompt": null}}')
    assert configuration.load(str(file)).lora.targets == ("all",)
    config = configuration.load(None, ["lora.targets=q_proj,v_proj", "task_args.system_prompt=none"])
    assert config.lora.targets == ("q_proj", "v_proj") and config.task_args.system_prompt is None
    assert configuration.load(None, ["task_args.system_prompt=5"]).task_args.system_prompt == "5"


def test_missing_and_malformed_files(tmp_path):
    assert "no such file" in refused(path=str(tmp_path / "none.py"))
    (tmp_path / "bad.json").write_text('{"stage": \n}')
    assert "bad.json:2: not JSON" in refused(path=str(tmp_path / "bad.json"))
    (tmp_path / "empty.py").write_text("")
    assert "defines no get_config()" in refused(path=str(tmp_path / "empty.py"))
    (tmp_path / "none.py").write_text("def get_config(): return 3\n")
    assert "must return a ConfigDict" in refused(path=str(tmp_path / "none.py"))


def test_saved_configuration_loads_as_the_same(tmp_path):
    config = configuration.load(None, ["stage=rl", 'rewards=[{"fn": "task"}]', "task_args.holdout=0.3", "lora.rank=2"])
    file = tmp_path / "config.json"
    file.write_text(configuration.to_json(config))
    again = configuration.load(str(file))
    assert configuration.to_json(again) == configuration.to_json(config)
    assert json.loads(file.read_text())["lora"]["rank"] == 2


def test_shipped_configurations_resolve(repo):
    files = sorted((repo / "configs" / "thoth").glob("*.py"))
    assert len(files) >= 9
    for file in files:
        config = configuration.load(str(file))
        assert config.stage in file.name
    small, large = (configuration.load(str(repo / "configs" / "thoth" / f"rl_{size}.py")) for size in ("4b", "8b"))
    same = {
        name: value
        for name, value in configuration.flatten(small.to_dict()).items()
        if name not in ("run_dir", "init_from")
    }
    assert all(configuration.flatten(large.to_dict())[name] == value for name, value in same.items())


def test_published_values(repo):
    """facts: the paper's section 4 and the released settings of the three stages."""
    load = lambda stage: configuration.load(str(repo / "configs" / "thoth" / f"{stage}_8b.py"))  # noqa: E731
    pretrain, sft, rl = load("pretrain"), load("sft"), load("rl")
    assert (
        pretrain.lora.rank,
        pretrain.learning_rate,
        pretrain.warmup_ratio,
        pretrain.num_epochs,
        pretrain.max_length,
    ) == (8, 1e-4, 0.1, 6, 16384)
    assert (sft.lora.rank, sft.learning_rate, sft.warmup_ratio, sft.num_epochs, sft.max_length) == (
        32,
        3e-4,
        0.05,
        5,
        8192,
    )
    assert (rl.lora.rank, rl.learning_rate, rl.weight_decay, rl.num_epochs) == (0, 5e-6, 0.01, 15)
    assert (rl.prompts_per_step, rl.group_size, rl.kl_coef, rl.kl_estimator, rl.entropy_coef) == (
        1024,
        5,
        0.0005,
        "k3",
        0.0,
    )
    assert (rl.max_prompt_length, rl.max_completion_length, rl.too_long, rl.temperature) == (1024, 1024, "drop", 1.0)


def test_stage_rl_has_no_dropout():
    assert "read by stage pretrain and sft only" in refused("stage=rl", "lora.dropout=0.1")


PRESETS = {
    "grpo": {"aggregation": "sequence_mean_token_mean", "kl_coef": 0.04, "scale_rewards": "group"},
    "dapo": {"epsilon_high": 0.28, "aggregation": "token_mean", "kl_coef": 0.0, "overlong.buffer": 20},
    "dr_grpo": {"scale_rewards": "none", "aggregation": "constant", "constant": 100.0},
    "gspo": {"level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "rloo": {"baseline": "leave_one_out", "scale_rewards": "none", "kl_in_reward": 0.05},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_keys_that_the_user_does_not(preset, tmp_path):
    words = ["stage=rl", f"preset={preset}", "max_completion_length=100"]
    config = configuration.load(None, words)
    flat = configuration.flatten(config)
    assert {name: flat[name] for name in PRESETS[preset]} == PRESETS[preset] and config.preset == preset
    # The command line goes before the preset, also where it names the stage's default.
    own = configuration.load(None, [*words, "epsilon_low=0.1", "scale_rewards=batch"])
    assert (own.epsilon_low, own.scale_rewards) == (0.1, "batch")
    # A run's config.json holds the values themselves.
    file = tmp_path / "config.json"
    file.write_text(configuration.to_json(own))
    assert configuration.load(str(file)).to_dict() == own.to_dict()


def test_a_preset_in_and_over_a_file(tmp_path):
    file = tmp_path / "own.py"
    start = "from thoth_jax import config as c\ndef get_config():\n    config = c.defaults('rl')\n"
    file.write_text(f"{start}    config.preset = 'gspo'\n    config.epsilon_high = 0.5\n    return config\n")
    config = configuration.load(str(file))
    assert (config.level, config.epsilon_low, config.epsilon_high) == ("sequence", 3e-4, 0.5)
    file.write_text(f"{start}    config.epsilon_high = 0.5\n    return config\n")
    assert configuration.load(str(file)).epsilon_high == 0.5
    assert configuration.load(str(file), ["preset=dapo"]).epsilon_high == 0.28


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["num_generations=4"], "unknown key 'num_generations': TRL and Tunix's num_generations is group_size here"),
        (["beta=0.1"], "beta is kl_coef here"),
        (["actor.clip_ratio_high=0.3"], "verl's clip_ratio_high is epsilon_high here"),
        (["use_vllm=true"], "training samples with its own engine"),
        (["endpoint=http://x"], "training samples with its own engine"),
        (["actor_rollout_ref.rollout.name=vllm"], "training samples with its own engine"),
        (["overlong=drop"], "'overlong' is a group of keys: set overlong.buffer, overlong.penalty; items over the"),
        (
            ["prompts_per_step=8", "prompts_per_update=3"],
            "prompts_per_step=8 is not a multiple of prompts_per_update=3",
        ),
        (["overlong.buffer=999"], "overlong.buffer=999 is more than max_completion_length=256"),
        (["overlong.penalty=2"], "overlong.penalty=2.0 is read only with overlong.buffer, which is 0"),
        (["dynamic_sampling.filter=outcome"], "is read only with dynamic_sampling.max_rounds, which is 0"),
        (["kl_clamp=20,10"], "kl_clamp=(20.0, 10.0) is read only with kl_coef"),
        (["kl_coef=1", "kl_clamp=20"], "kl_clamp=('20',): expected two positive numbers, as 20,10"),
        (["kl_coef=1", "kl_clamp=0,1"], "expected two positive numbers"),
        (["preset=dap"], "preset='dap'"),
        (["keep_best=2"], "keep_best=2 and best_metric='': one says how many checkpoints, the other of what"),
        (["best_metric=score"], "set both or none"),
    ],
)
def test_names_and_values_of_stage_rl_that_are_refused(words, message):
    assert message in refused("stage=rl", *words)


def test_every_answer_to_another_librarys_name_is_a_key_here():
    for name, (_, here) in ELSEWHERE.items():
        words = here.replace(",", " ").replace(":", " ").split()
        assert any(word.split("=")[0] in configuration.KEYS for word in words) or "preset" in here, name
        assert name not in configuration.KEYS


def test_a_clamp_comes_from_a_file_as_from_the_command_line(tmp_path):
    config = configuration.load(None, ["stage=rl", "kl_coef=1", "kl_clamp=20,10"])
    file = tmp_path / "config.json"
    file.write_text(configuration.to_json(config))
    assert configuration.load(str(file)).kl_clamp == config.kl_clamp == (20.0, 10.0)
    assert configuration.load(str(file), ["kl_clamp=none"]).kl_clamp is None
