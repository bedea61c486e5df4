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
import resource
import sys
import time


class Tunix:
    """google-tunix's Sampler."""

    def __init__(self, model: str, config: dict, cache_length: int):
        from importlib.metadata import version

        from tunix.generate.sampler import CacheConfig, Sampler
        from tunix.models.qwen3 import model as qwen3
        from tunix.models.qwen3 import params

        settings = qwen3.ModelConfig(
            num_layers=config["num_hidden_layers"],
            vocab_size=config["vocab_size"],
            embed_dim=config["hidden_size"],
            hidden_dim=config["intermediate_size"],
            num_heads=config["num_attention_heads"],
            head_dim=config["head_dim"],
            num_kv_heads=config["num_key_value_heads"],
            rope_theta=int(config["rope_theta"]),
            norm_eps=config["rms_norm_eps"],
            use_tied_embedding=config["tie_word_embeddings"],
        )
        policy = params.create_model_from_safe_tensors(model, settings)
        cache = CacheConfig(cache_length, settings.num_layers, settings.num_kv_heads, settings.head_dim)
        self.name = f"google-tunix {version('google-tunix')}"
        self._outside = config["vocab_size"]
        self._sampler = Sampler(policy, self, cache)

    # A tokenizer whose texts are the ids themselves; its end token lies outside of the vocabulary.
    def encode(self, text: str, **_) -> list[int]:
        """Ids of "3 14 15"."""
        return [int(word) for word in text.split()]

    def decode(self, ids, **_) -> str:
        """Nothing: detokenizing is not what is measured."""
        return ""

    def bos_id(self) -> int:
        """0: Tunix then puts nothing before a prompt."""
        return 0

    def eos_id(self) -> int:
        """Of no token: samples run to the asked length."""
        return self._outside

    def pad_id(self) -> int:
        """Prompts of one call are equally long: nothing is padded."""
        return 0

    def generate(self, request: dict) -> None:
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


class Transformers:
    """transformers' generate on torch."""

    def __init__(self, model: str, config: dict, cache_length: int):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def generate(self, request: dict) -> None:
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


class Thoth:
    """Our engine."""

    def __init__(self, model: str, config: dict, cache_length: int):
        import jax

        from thoth_jax.models import hf

        self.name = f"thoth-jax, jax {jax.__version__}"
        self._config, self._params, _ = hf.load(model)
        self._engines: dict = {}

    def generate(self, request: dict) -> None:
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


def main() -> None:
    """Serve until stdin ends."""
    kind, model, cache_length = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")  # what libraries print must not mix with the answers
    os.dup2(2, 1)

    def answer(row: dict) -> None:
        print(json.dumps(row), file=answers, flush=True)

    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        peer = {"tunix": Tunix, "transformers": Transformers, "thoth": Thoth}[kind](model, config, cache_length)
    except Exception as error:  # told to the other end in one line
        answer({"error": f"{type(error).__name__}: {error}"[:400]})
        return
    answer({"peer": peer.name, "python": sys.version.split()[0]})
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        try:
            peer.generate(request)
        except Exception as error:  # out of memory, most likely: the other contenders go on
            answer({"error": f"{type(error).__name__}: {error}"[:400]})
            continue
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer({"seconds": seconds, "tokens": sum(map(sum, request["lengths"])), "peak_mb": peak})


if __name__ == "__main__":
    main()
