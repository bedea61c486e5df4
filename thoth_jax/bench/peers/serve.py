"""One contender of `thoth bench rollout`, in a process of its own: loads a checkpoint and times what it is asked for.

    PYTHON serve.py tunix|transformers|thoth MODEL_DIR CACHE_LENGTH

A peer's Python runs this file, so at its top it imports nothing of ours, and nothing of anybody's. The model directory
holds a Qwen3 (config.json, model.safetensors). A request is one line of stdin, {"prompts": [[ids]], "lengths": [[n]],
"slots": rows, "seed": s}: G samples of each prompt, so many tokens each, at temperature 1 from the whole distribution,
at most `slots` decoded together. The answer is one line of stdout, {"seconds": wall, "tokens": sum of lengths,
"peak_mb": of the process so far}, or {"error": text}.

Peers know no refilling: rows are taken in batches of `slots`, and each batch runs to the longest length in it, as it
would if the rows had sampled their end tokens there. They are credited with the tokens asked for.
"""

import json
import os

from answering import answer_requests
from tunix_qwen3 import IdTokenizer, load_tunix, tunix_config


class Tunix:
    """google-tunix's Sampler."""

    def __init__(self, model: str, config: dict, cache_length: int):
        from importlib.metadata import version

        from tunix.generate.sampler import CacheConfig, Sampler

        settings = tunix_config(model)
        policy = load_tunix(model)
        cache = CacheConfig(cache_length, settings.num_layers, settings.num_kv_heads, settings.head_dim)
        self.name = f"google-tunix {version('google-tunix')}"
        self._sampler = Sampler(policy, IdTokenizer(config["vocab_size"]), cache)

    def ask(self, request: dict) -> dict:
        """Answer a request."""
        for rows, new_tokens in _batches(request):
            out = self._sampler(
                [" ".join(map(str, ids)) for ids in rows],
                max_generation_steps=new_tokens,
                max_prompt_length=max(map(len, rows)),
                temperature=1.0,
                top_p=1.0,
                seed=request["seed"],
            )
            _check([len(row) for row in out.tokens], [new_tokens] * len(rows))
        return {"tokens": sum(map(sum, request["lengths"]))}


class Transformers:
    """transformers' generate on torch."""

    def __init__(self, model: str, config: dict, cache_length: int):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def ask(self, request: dict) -> dict:
        """Answer a request."""
        torch = self._torch
        torch.manual_seed(request["seed"])
        for rows, new_tokens in _batches(request):
            ids = torch.tensor(rows)
            with torch.inference_mode():
                out = self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=new_tokens,
                    min_new_tokens=new_tokens,
                    pad_token_id=0,
                    eos_token_id=None,
                )
            _check([out.shape[1] - ids.shape[1]], [new_tokens])
        return {"tokens": sum(map(sum, request["lengths"]))}


class Thoth:
    """Our engine."""

    def __init__(self, model: str, config: dict, cache_length: int):
        import jax

        from thoth_jax.models import hf

        self.name = f"thoth-jax, jax {jax.__version__}"
        self._config, self._params, _ = hf.load(model)
        self._engines: dict = {}

    def ask(self, request: dict) -> dict:
        """Answer a request."""
        import jax

        from thoth_jax.rollout import Engine, Sampling

        prompts, lengths = request["prompts"], request["lengths"]
        size = max(map(len, prompts)), max(map(max, lengths)), request["slots"]
        if size not in self._engines:
            self._engines[size] = Engine(
                self._config, None, max_prompt_length=size[0], max_completion_length=size[1], slots=size[2]
            )
        key = jax.random.key(request["seed"])
        groups = self._engines[size].stream(self._params, prompts, len(lengths[0]), Sampling(), key, limits=lengths)
        for group in groups:
            _check(group.lengths.tolist(), lengths[group.index])
        return {"tokens": sum(map(sum, lengths))}


def _batches(request: dict):
    """(rows of ids, longest length) of each batch."""
    pairs = [
        (ids, length) for ids, lengths in zip(request["prompts"], request["lengths"], strict=True) for length in lengths
    ]
    for start in range(0, len(pairs), request["slots"]):
        batch = pairs[start : start + request["slots"]]
        yield [ids for ids, _ in batch], max(length for _, length in batch)


def _check(found: list, wanted: list) -> None:
    if list(found) != list(wanted):
        raise AssertionError(f"sampled {found} tokens, asked for {wanted}")


def _make(kind: str, model: str, settings: str):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return {"tunix": Tunix, "transformers": Transformers, "thoth": Thoth}[kind](model, config, int(settings))


if __name__ == "__main__":
    answer_requests(_make)
