"""One contender of `thoth bench train`, in a process of its own: steps of next-token training on given rows.

    PYTHON update.py tunix|transformers|thoth MODEL_DIR SETTINGS

A peer's Python runs this file, so at its top it imports nothing of ours, and nothing of anybody's. SETTINGS is JSON:
{"rows": [[ids]], "rank": 0 (all parameters) or that of the adapters on the seven linear maps, "alpha": a,
"learning_rate": r, "max_grad_norm": n, "keys": {of our configuration}}. A request is {}: one step on all rows, with
AdamW (0.9, 0.95, no weight decay) and clipping. The answer has "loss" before the update.
"""

import json
import os

from answering import answer_requests
from tunix_qwen3 import load_tunix

_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Tunix:
    """google-tunix's PeftTrainer: the jitted step that its `train` runs."""

    def __init__(self, model: str, settings: dict):
        from importlib.metadata import version

        import jax
        import jax.numpy as jnp
        import optax
        from tunix.sft import peft_trainer
        from tunix.sft.utils import build_positions_from_mask, make_causal_attn_mask

        self.name = f"google-tunix {version('google-tunix')}, jax {jax.__version__}"
        policy = load_tunix(model, settings["rank"], settings["alpha"])
        optimizer = optax.chain(
            optax.clip_by_global_norm(settings["max_grad_norm"]),
            optax.adamw(settings["learning_rate"], b1=0.9, b2=0.95, weight_decay=0.0),
        )
        trainer = peft_trainer.PeftTrainer(
            policy, optimizer, peft_trainer.TrainingConfig(eval_every_n_steps=10**9, max_steps=10**6)
        )

        def inputs(batch):
            return {
                "input_tokens": batch.input_tokens,
                "input_mask": batch.input_mask,
                "positions": build_positions_from_mask(batch.input_mask),
                "attention_mask": make_causal_attn_mask(batch.input_mask),
            }

        trainer = trainer.with_gen_model_input_fn(inputs)
        self._step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)
        tokens = jnp.asarray(settings["rows"], jnp.int32)
        self._batch = peft_trainer.TrainingInput(tokens, jnp.ones(tokens.shape, bool))

    def ask(self, request: dict) -> dict:
        """One step."""
        out = self._step(self._batch)
        return {"loss": float(out[0]), "grad_norm": float(out[2])}


class Transformers:
    """transformers (with peft for adapters) on torch, eager, with the fused AdamW."""

    def __init__(self, model: str, settings: dict):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.manual_seed(0)
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._torch, self._norm = torch, settings["max_grad_norm"]
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if settings["rank"]:
            import peft

            self.name += f", peft {peft.__version__}"
            lora = peft.LoraConfig(r=settings["rank"], lora_alpha=settings["alpha"], target_modules=list(_LINEAR))
            self._model = peft.get_peft_model(self._model, lora)
        self._model.train()
        self._trained = [leaf for leaf in self._model.parameters() if leaf.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=settings["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._tokens = torch.tensor(settings["rows"])

    def ask(self, request: dict) -> dict:
        """One step."""
        loss = self._model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss
        loss.backward()
        norm = self._torch.nn.utils.clip_grad_norm_(self._trained, self._norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"loss": float(loss), "grad_norm": float(norm)}


class Thoth:
    """Our stage pretrain."""

    def __init__(self, model: str, settings: dict):
        import jax

        from thoth_jax.bench.token_ids import Stepper

        self.name = f"thoth-jax, jax {jax.__version__}"
        rows = settings["rows"]
        keys = {
            "batch_size": len(rows),
            "max_length": len(rows[0]),
            "num_steps": 10**6,
            "schedule": "constant",
            "learning_rate": settings["learning_rate"],
            "max_grad_norm": settings["max_grad_norm"],
            "lora.rank": settings["rank"],
            "lora.alpha": settings["alpha"],
            "eval_examples": 1,
            **settings["keys"],
        }
        self._stepper = Stepper(model, "pretrain", rows, keys)

    def ask(self, request: dict) -> dict:
        """One step."""
        metrics = self._stepper.step()
        return {"loss": metrics["loss"], "grad_norm": metrics["grad_norm"]}


def _make(kind: str, model: str, settings: str):
    return {"tunix": Tunix, "transformers": Transformers, "thoth": Thoth}[kind](model, json.loads(settings))


if __name__ == "__main__":
    answer_requests(_make)
