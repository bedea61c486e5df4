"""The Task interface: all that the stack knows of a domain, and import by path.

Trainer, engine, checkpoints and report never name a domain. A new domain is a class with the methods of `Task`,
named by import path (`config.task = "my_package.my_task:MyTask"`).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, runtime_checkable

import numpy as np

from thoth_jax.errors import InputError
from thoth_jax.plugins import check_kwargs, import_object, parameters_of

__all__ = [
    "Completion",
    "Example",
    "Message",
    "Rewards",
    "Task",
    "check_gold",
    "check_kwargs",
    "import_object",
    "load_task",
    "parameters_of",
]


class Message(TypedDict):
    """One turn of a chat: role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True)
class Example:
    """One item of a data set. `data` belongs to the Task; the stack only passes it on."""

    id: str
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the policy answered.

    text:          the decoded answer, without the end token.
    token_ids:     as sampled, never re-encoded.
    char_ends:     for each token the offset in `text` where it ends (len == len(token_ids)).
    finish_reason: "stop" (an end token was sampled) or "length" (cut off).
    """

    text: str
    token_ids: tuple[int, ...] = ()
    char_ends: tuple[int, ...] = ()
    finish_reason: str = "stop"


@dataclasses.dataclass(frozen=True)
class Rewards:
    """Rewards of B completions.

    total:          [B] what the policy is trained on.
    parts:          {name: [B]} logged one by one.
    valid:          [B] bool; False: no reward could be given, the sample is left out (it is not 0).
    raw:            [B] the verifiable quantity before shaping, on which dynamic sampling filters.
    steps:          [B, S] rewards of single steps (optional).
    step_char_ends: [B, S] character offset in the completion where each step ends (optional, with `steps`).
    """

    total: np.ndarray
    parts: Mapping[str, np.ndarray]
    valid: np.ndarray
    raw: np.ndarray
    steps: np.ndarray | None = None
    step_char_ends: np.ndarray | None = None


@runtime_checkable
class Task(Protocol):
    """A domain: its data, its prompts, its verifiable reward and its metrics. Splits: "train", "eval".

    A Task may also have
      check_gold(example): raises InputError if answers to the example cannot be rewarded; stage rl asks before its
        first step (see `check_gold` of this module).
      judge(examples, completions) -> {metric: [B]}: what `evaluate` averages, for intervals.
      cluster(example) -> str: examples with the same are not independent of each other.
      explain(examples, completions) -> [B] dicts: why each answer got its reward, for the people who read samples:
        {"formula": text, "reason": text, "steps": [{"status": "matched", "mismatched", "added" or "missing", "text",
        "gold", "note"}]}; the report shows them.
    """

    name: str

    def documents(self, split: str) -> Iterable[str | tuple[str, str]]:
        """What stage pretrain reads: a text, or a pair (given, wanted) of which only `wanted` is learnt."""
        ...

    def examples(self, split: str) -> Sequence[Example]:
        """Items of stages sft and rl and of evaluation."""
        ...

    def messages(self, example: Example) -> list[Message]:
        """The chat prompt of an item."""
        ...

    def target(self, example: Example) -> str:
        """The gold completion of an item."""
        ...

    def reward(self, examples: Sequence[Example], completions: Sequence[Completion]) -> Rewards:
        """Verifiable rewards, one per (example, completion) pair. Must not raise on any completion text."""
        ...

    def evaluate(self, examples: Sequence[Example], completions: Sequence[Completion]) -> Mapping[str, float]:
        """Metrics averaged over the pairs."""
        ...


def load_task(path: str, task_args: Mapping[str, Any]) -> Task:
    """Build the Task named by `path` with `task_args`, both checked.

    Raises:
      InputError: the path does not import, an argument is unknown, or the object is not a Task.
    """
    factory = import_object(path)
    if not callable(factory):
        raise InputError(f"task {path!r}: expected a class or a function that makes a Task, got {factory!r}")
    check_kwargs(factory, task_args, "task_args")
    task = factory(**task_args)
    missing = [
        name
        for name in ("name", "documents", "examples", "messages", "target", "reward", "evaluate")
        if not hasattr(task, name)
    ]
    if missing:
        raise InputError(f"task {path!r} lacks {', '.join(missing)} of the Task interface")
    return task


def check_gold(task: Task, example: Example) -> None:
    """Ask the Task, where it can tell, whether an example can be rewarded.

    Raises:
      InputError: it cannot.
    """
    check = getattr(task, "check_gold", None)
    if check is not None:
        check(example)
