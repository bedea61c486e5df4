"""Evaluation: the published benchmark's metrics, and the bodies of `thoth score` and `thoth evaluate`."""

from thoth_jax.evaluation.files import evaluate_file, score_file, table, write_jsonl
from thoth_jax.evaluation.structured import structured_metrics

__all__ = ["evaluate_file", "score_file", "structured_metrics", "table", "write_jsonl"]
