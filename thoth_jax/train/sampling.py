"""The policy answers evaluation items: completions that a Task judges, and samples that people read."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from thoth_jax.data.encoding import Encoded, encode_prompts
from thoth_jax.errors import InputError
from thoth_jax.rollout import Engine, Sampling
from thoth_jax.task import Completion, Example

logger = logging.getLogger(__name__)


def completion_of(tokenizer, tokens: np.ndarray, finish_reason: str) -> Completion:
    """Sampled tokens [n] as a Completion. The end token belongs to token_ids and adds no text."""
    ids = [int(token) for token in tokens]
    body = ids[:-1] if finish_reason == "stop" and ids else ids
    text, ends = tokenizer.decode_with_ends(body)
    return Completion(text, tuple(ids), tuple(ends) + (len(text),) * (len(ids) - len(body)), finish_reason)


def usable(run, examples: Sequence[Example], check: Callable[[Example], Any]) -> list[Example]:
    """The examples that `check` lets pass. Under task_args.skip_bad the others are counted and listed.

    Raises:
      InputError: of the first example that does not pass, without skip_bad; or none passes.
    """
    kept, bad = [], []
    for example in examples:
        try:
            check(example)
            kept.append(example)
        except InputError as error:
            if not run.config.task_args.get("skip_bad", False):
                raise
            bad.append(str(error))
    if bad:
        logger.warning("%d bad rows skipped:\n  %s", len(bad), "\n  ".join(bad))
    if bad and not kept:
        raise InputError(f"no row is left, all are bad; the first: {bad[0]}")
    return kept


def prompts_of(run, split: str, limit: int, check: Callable[[Example], Any] | None = None) -> Encoded:
    """The encoded prompts of the first `limit` items of a split (0: of all) that pass `check` (see `usable`)."""
    config = run.config
    examples = run.task.examples(split)
    examples = examples[: limit or len(examples)]
    return encode_prompts(
        run.task,
        examples if check is None else usable(run, examples, check),
        run.tokenizer,
        max_prompt_length=config.max_prompt_length,
        too_long=config.too_long,
        enable_thinking=config.enable_thinking,
    )


class Answerer:
    """Greedy answers to a fixed list of prompts, in order."""

    def __init__(self, run, prompts: Sequence[list[int]], max_prompt_length: int):
        self._tokenizer = run.tokenizer
        self._prompts = list(prompts)
        limit = run.config.max_completion_length
        longest = max((len(prompt) for prompt in self._prompts), default=1)
        self._engine = Engine(
            run.model, run.mesh, max_prompt_length=min(longest, max_prompt_length), max_completion_length=limit
        )
        self._sampling = Sampling(temperature=0.0, max_tokens=limit, stop_ids=run.tokenizer.stop_ids)

    def __call__(self, params, lora, should_stop: Callable[[], bool]) -> list[Completion] | None:
        """One completion per prompt, or None if `should_stop` came true on the way."""
        found: dict[int, Completion] = {}
        key = jax.random.key(0)  # greedy: the noise is not used
        for group in self._engine.stream(
            params, self._prompts, 1, self._sampling, key, lora=lora, should_stop=should_stop
        ):
            found[group.index] = completion_of(
                self._tokenizer, group.tokens[0][: group.lengths[0]], group.finish_reason[0]
            )
        return [found[index] for index in range(len(self._prompts))] if len(found) == len(self._prompts) else None


def completion_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Lengths in tokens and how answers ended."""
    return length_metrics(
        [len(completion.token_ids) for completion in completions],
        [completion.finish_reason for completion in completions],
    )


def length_metrics(lengths: Sequence[int], finish_reasons: Sequence[str]) -> dict[str, float]:
    """Of B samples, how many tokens they have and how they ended."""
    return {
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": float(np.max(lengths)),
        "completions/truncated_frac": float(np.mean([reason == "length" for reason in finish_reasons])),
    }


def sample_rows(task, examples: Sequence[Example], completions: Sequence[Completion]) -> list[dict]:
    """What samples/STEP.jsonl says of each answer: id, question (the last turn of the prompt), output, finish_reason,
    and "explained" where the Task explains rewards."""
    explain = getattr(task, "explain", None)
    said = [{"explained": one} for one in explain(examples, completions)] if explain else [{} for _ in examples]
    return [
        {
            "id": example.id,
            "question": task.messages(example)[-1]["content"],
            "output": completion.text,
            "finish_reason": completion.finish_reason,
            **more,
        }
        for example, completion, more in zip(examples, completions, said, strict=True)
    ]


def json_line(row: dict) -> str:
    """A row as one line of JSON that any reader takes: a lone surrogate stays an escape."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n"


def write_samples(run_dir: str, step: int, rows: Sequence[dict]) -> None:
    """RUN/samples/STEP.jsonl, written whole or not at all."""
    directory = epath.Path(run_dir) / "samples"
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f"{step}.jsonl.tmp"
    temporary.write_text("".join(json_line(row) for row in rows))
    temporary.replace(directory / f"{step}.jsonl")
