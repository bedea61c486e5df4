"""Stages on given token ids: a Task and a tokenizer whose texts are the ids, so that all contenders see the same."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from thoth_jax import config as configuration
from thoth_jax.errors import InputError
from thoth_jax.models import hf
from thoth_jax.models.lora import init_lora
from thoth_jax.models.tokenizer import Tokenizer
from thoth_jax.sharding import make_mesh, use_mesh
from thoth_jax.task import Completion, Example, Message, Rewards
from thoth_jax.train.build import Run, lora_config
from thoth_jax.train.lm import LmStage
from thoth_jax.train.policy import RlStage
from thoth_jax.train.state import TrainState, create_state

_STAGES = {"pretrain": LmStage, "rl": RlStage}


class IdTokenizer(Tokenizer):
    """Texts like "3 14 15"; no token ends an answer."""

    def __init__(self, size: int):
        super().__init__([f" {n}".encode() for n in range(size)], {}, {})
        self.pad_id, self.end_id, self.document_end_id, self.stop_ids = 0, 0, 0, ()

    def _encode_plain(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def encode_prompt(self, messages, enable_thinking: bool = True, tools=()) -> list[int]:
        """The ids of the one message."""
        return self.encode(messages[0]["content"])

    def encode_document(self, text: str) -> list[int]:
        """The ids alone."""
        return self.encode(text)

    def save(self, path) -> None:
        """Refused: it is of no use outside of a benchmark."""
        raise InputError("the tokenizer of a benchmark cannot be saved")


class IdTask:
    """Rows of ids as documents and as prompts; the reward of an answer is its share of even ids."""

    name = "token ids"

    def __init__(self, rows: Sequence[Sequence[int]]):
        self._texts = [" ".join(map(str, row)) for row in rows]

    def documents(self, split: str) -> list[str]:
        """All rows."""
        return self._texts if split == "train" else self._texts[:1]

    def examples(self, split: str) -> list[Example]:
        """All rows."""
        return [Example(str(n), {"text": text}) for n, text in enumerate(self.documents(split))]

    def messages(self, example: Example) -> list[Message]:
        """The row as the user's turn."""
        return [{"role": "user", "content": example.data["text"]}]

    def target(self, example: Example) -> str:
        """The row."""
        return example.data["text"]

    def reward(self, examples: Sequence[Example], completions: Sequence[Completion]) -> Rewards:
        """Share of even ids."""
        shares = [np.mean([token % 2 == 0 for token in c.token_ids]) if c.token_ids else 0.0 for c in completions]
        total = np.asarray(shares, np.float32)
        return Rewards(total, {}, np.ones(len(total), bool), total)

    def evaluate(self, examples: Sequence[Example], completions: Sequence[Completion]) -> dict[str, float]:
        """The mean reward."""
        return {"score": float(self.reward(examples, completions).total.mean())}


class Stepper:
    """A stage of the trainer with its state, stepped as the trainer's loop steps it."""

    def __init__(self, model: str, stage: str, rows: Sequence[Sequence[int]], settings: dict[str, Any]):
        """Load the checkpoint and build the stage.

        Args:
          model: HF directory. stage: "pretrain" or "rl". rows: documents or prompts. settings: configuration keys.
        """
        self.config = configuration.load(None, [f"stage={stage}"], settings)
        self.mesh = make_mesh()
        architecture, params, _ = hf.load(model, self.mesh)
        architecture = architecture.replace(dtype=self.config.model.dtype, remat=self.config.model.remat)
        task, tokenizer, lora = IdTask(rows), IdTokenizer(architecture.vocab_size), None
        with use_mesh(self.mesh):
            if self.config.lora.rank:
                lora = init_lora(architecture, lora_config(self.config), jax.random.key(0), self.mesh, params)
            run = Run(self.config, self.mesh, task, tokenizer, architecture, params, lora)
            self.stage = _STAGES[stage](run)
            self.state: TrainState = create_state(params, lora, self.stage.optimizer, self.mesh)
        self._index = 0

    def step(self) -> dict[str, float]:
        """One step; its metrics, read to the end."""
        with use_mesh(self.mesh):
            self.state, metrics = self.stage.step(self.state, self._index, lambda: False)
            jax.block_until_ready(self.state.trainable)
        self._index += 1
        return {name: float(value) for name, value in metrics.items()}
