"""The training benchmark runs the steps of the trainer, full and LoRA, in a process of its own."""

from tests.bench.test_rollout import SMALL
from thoth_jax.bench.train import bench_train


def test_steps_are_timed_and_learn():
    found = bench_train(repeats=2, seed=1, config=SMALL, rows=8, length=16)
    assert found["config"]["rows"] == 8 and found["matmul_gflops"] > 1
    for method in ("full", "lora"):
        row = found["methods"][method]
        ours = row["thoth"]
        assert "step_s" in ours and ours["peak_mb"] > 100, ours
        assert abs(ours["tokens_per_s"] * ours["step_s"] - 128) < 1e-6
        first, *_, last = ours["first_losses"]
        assert last < first, "each step is an update"
    assert found["methods"]["full"]["floor_s"] > 0
