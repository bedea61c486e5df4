"""Items of a Task -> token sequences, with one explicit, counted policy for what is too long."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence

import numpy as np

from thoth_jax.data.packing import Sample, split_document
from thoth_jax.errors import InputError
from thoth_jax.task import Example, Task

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Items that fit, with what became of the rest.

    examples: the items kept; samples or prompts: their tokens, in the same order.
    """

    examples: list[Example]
    samples: list[Sample] = dataclasses.field(default_factory=list)
    prompts: list[list[int]] = dataclasses.field(default_factory=list)
    truncated: int = 0
    dropped: int = 0


def encode_documents(documents: Iterable[str | tuple[str, str]], tokenizer, max_length: int) -> list[Sample]:
    """Documents -> samples of at most `max_length` pairs; long documents are split, none is lost.

    Of a pair (given, wanted) only `wanted` is learnt, with the end of a document after it; one that is too long loses
    the beginning of `given`, then the end of `wanted`.
    """
    samples = []
    for document in documents:
        if isinstance(document, str):
            samples.extend(split_document(tokenizer.encode_document(document), max_length))
        else:
            samples.append(_pair(*document, tokenizer, max_length))
    if not samples:
        raise InputError("stage pretrain: the task gives no document with at least two tokens")
    return samples


def _pair(given: str, wanted: str, tokenizer, max_length: int) -> Sample:
    answer = tokenizer.encode_document(wanted)[:max_length]
    prompt = tokenizer.encode(given)[-(max_length + 1 - len(answer)) :]
    learn = np.zeros(len(prompt) + len(answer), bool)
    learn[len(prompt) :] = True
    return Sample(np.asarray(prompt + answer, np.int32), learn)


def encode_examples(
    task: Task,
    examples: Sequence[Example],
    tokenizer,
    *,
    max_length: int,
    max_prompt_length: int,
    too_long: str,
    enable_thinking: bool,
) -> Encoded:
    """Chat prompt + gold answer + end token; only the answer and its end token are learnt.

    Args:
      max_length: (input, target) pairs of prompt and answer together.
      max_prompt_length: tokens of the prompt.
      too_long: "refuse", "drop", or "truncate" (the prompt keeps its end, the answer its beginning).

    Raises:
      InputError: an item is too long under "refuse", or none is left.
    """
    encoded = Encoded([])
    truncated = dropped = 0
    for example in examples:
        prompt = tokenizer.encode_prompt(task.messages(example), enable_thinking=enable_thinking)
        answer = tokenizer.encode_answer(task.target(example))
        if len(prompt) > max_prompt_length or len(prompt) + len(answer) > max_length + 1:
            if too_long == "refuse":
                raise InputError(
                    f"example {example.id!r}: {len(prompt)} prompt + {len(answer)} answer tokens, over "
                    f"max_prompt_length={max_prompt_length} or max_length={max_length}; "
                    "raise them, or set too_long=truncate or too_long=drop"
                )
            if too_long == "drop":
                dropped += 1
                continue
            truncated += 1
            # At least one token of the answer stays to be learnt.
            prompt = prompt[-min(max_prompt_length, max_length) :]
            answer = answer[: max_length + 1 - len(prompt)]
        learn = np.zeros(len(prompt) + len(answer), bool)
        learn[len(prompt) :] = True
        encoded.examples.append(example)
        encoded.samples.append(Sample(np.asarray(prompt + answer, np.int32), learn))
    return _finish(encoded, truncated, dropped, too_long)


def encode_prompts(
    task: Task, examples: Sequence[Example], tokenizer, *, max_prompt_length: int, too_long: str, enable_thinking: bool
) -> Encoded:
    """Chat prompts up to the point where the policy answers.

    Raises:
      InputError: a prompt is too long under "refuse", or none is left.
    """
    encoded = Encoded([])
    truncated = dropped = 0
    for example in examples:
        prompt = tokenizer.encode_prompt(task.messages(example), enable_thinking=enable_thinking)
        if len(prompt) > max_prompt_length:
            if too_long == "refuse":
                raise InputError(
                    f"example {example.id!r}: the prompt has {len(prompt)} tokens, over max_prompt_length="
                    f"{max_prompt_length}; raise it, or set too_long=truncate or too_long=drop"
                )
            if too_long == "drop":
                dropped += 1
                continue
            truncated += 1
            prompt = prompt[-max_prompt_length:]
        encoded.examples.append(example)
        encoded.prompts.append(prompt)
    return _finish(encoded, truncated, dropped, too_long)


def _finish(encoded: Encoded, truncated: int, dropped: int, too_long: str) -> Encoded:
    if truncated or dropped:
        logger.warning("over the length limit: %d truncated, %d dropped (too_long=%s)", truncated, dropped, too_long)
    if not encoded.examples:
        raise InputError("no item is left: the data set is empty, or all of it is over the length limit")
    return dataclasses.replace(encoded, truncated=truncated, dropped=dropped)
