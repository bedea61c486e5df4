"""docs/your_own_reward.md works as pasted: a file of the user's trains without an edit to the package."""

import json
import re
import shlex

from thoth_jax import cli
from thoth_jax.train.metrics import read_metrics

TINY = [
    "--config.init_from=",
    "--config.model.hidden_size=32",
    "--config.model.intermediate_size=48",
    "--config.model.num_layers=2",
    "--config.model.head_dim=8",
    "--config.task_args.system_prompt=",
    "--config.max_completion_length=8",
    "--config.num_steps=1",
    "--config.prompts_per_step=2",
]


def test_the_page_trains_as_pasted(repo, tmp_path, monkeypatch):
    text = (repo / "docs" / "your_own_reward.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert len(code.splitlines()) <= 30
    (tmp_path / "brief.py").write_text(code)
    command = re.search(r"```\n(thoth train.*?)```", text, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    words = [word.replace("configs/", f"{repo}/configs/") for word in shlex.split(command.replace("\\\n", " "))[1:]]
    assert cli.main([*words, *TINY]) == 0
    row = next(row for row in read_metrics("runs/brief") if row["kind"] == "train")
    # An untrained policy writes no protocol and does not end its answers.
    assert row["rewards/brief:brevity"] == row["rewards/brief:finished"] == row["rewards/task"] == 0.0
    assert row["rewards/invalid"] == 0
    assert json.loads((tmp_path / "runs" / "brief" / "config.json").read_text())["rewards"][1]["weight"] == 0.2
