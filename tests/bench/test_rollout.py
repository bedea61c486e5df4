"""The rollout benchmark measures what it says: the asked tokens, each contender in its own process."""

import stat

import pytest

from thoth_jax.bench import rollout
from thoth_jax.bench.contenders import TINY
from thoth_jax.cli import main
from thoth_jax.errors import InputError
from thoth_jax.models import QwenConfig

SMALL = QwenConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)


def test_every_case_gives_rates_and_the_share_of_the_floor(monkeypatch):
    case = rollout.Case(prompts=3, prompt_length=8, group_size=2, shortest=2, longest=6, slots=4)
    monkeypatch.setattr(rollout, "CASES", {"small": case})
    found = rollout.bench_rollout(cases=("small",), repeats=2, seed=3, config=SMALL)
    row = found["cases"]["small"]
    ours = row["thoth"]
    assert row["case"] == case._asdict() and found["matmul_gflops"] > 1 and ours["peak_mb"] > 100
    assert ours["tokens_per_s_min"] <= ours["tokens_per_s"] <= ours["tokens_per_s_max"]
    tokens = ours["tokens_per_s"] * ours["wall_s"]
    assert tokens == pytest.approx(round(tokens)) and 12 <= round(tokens) <= 36
    assert row["share_of_floor"] == pytest.approx(row["floor_s"] / ours["wall_s"])
    assert "times_the_best_peer" not in row


def test_operations_are_those_of_the_published_count():
    """facts on the peers: 75.8 GFLOP with the eight prompts read once."""
    case = rollout.CASES["even"]
    found = rollout._operations(case, TINY, [[128] * 8] * 8)
    assert found == pytest.approx(75.8e9, rel=0.01)


def test_a_peer_that_is_none_is_refused(tmp_path, capsys):
    empty = tmp_path / "python"
    empty.write_text("#!/bin/sh\n")
    empty.chmod(empty.stat().st_mode | stat.S_IXUSR)
    for python, why in ((str(empty), "needs google-tunix, or transformers and torch"), ("nowhere", "does not start")):
        with pytest.raises(InputError, match=why):
            rollout.bench_rollout([python])
    assert main(["bench", "rollout", "--case", "odd"]) == 2
    assert "must be one of even, refill, prefix, long" in capsys.readouterr().err


def test_a_contender_that_dies_or_cannot_is_told_in_its_place(tmp_path, monkeypatch):
    peer = tmp_path / "python"
    peer.write_text('#!/bin/sh\n[ "$1" = -c ] && echo tunix && exit 0\nexit 7\n')
    peer.chmod(peer.stat().st_mode | stat.S_IXUSR)
    case = rollout.Case(prompts=1, prompt_length=8, group_size=2, shortest=2, longest=2, slots=2)
    monkeypatch.setattr(rollout, "CASES", {"small": case})
    row = rollout.bench_rollout([str(peer)], ("small",), repeats=1, config=SMALL)["cases"]["small"]
    assert row["tunix"] == {"error": "ended with code 7"} and row["thoth"]["tokens_per_s"] > 0
