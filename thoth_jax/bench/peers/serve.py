"""Run by a peer's Python: loads a checkpoint with the peer and times what it is asked for.

    PEER_PYTHON serve.py tunix|transformers MODEL_DIR CACHE_LENGTH

The model directory holds a Qwen3 (config.json, model.safetensors). A request is {"prompts": [[ids]], "group_size": G,
"new_tokens": n, "seed": s}: every prompt G times, sampled at temperature 1 from the whole distribution, no end token.
The answer is {"seconds": wall, "tokens": sampled, "peak_mb": of the process so far}, or {"error": text}.
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

    def generate(self, prompts, new_tokens: int, seed: int) -> int:
        """Sample, and return the number of tokens sampled."""
        longest = max(map(len, prompts))
        texts = [" ".join(map(str, ids)) for ids in prompts]
        out = self._sampler(
            texts, max_generation_steps=new_tokens, max_prompt_length=longest, temperature=1.0, top_p=1.0, seed=seed
        )
        return sum(len(row) for row in out.tokens)


class Transformers:
    """transformers' generate on torch."""

    def __init__(self, model: str, config: dict, cache_length: int):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def generate(self, prompts, new_tokens: int, seed: int) -> int:
        """Sample, and return the number of tokens sampled."""
        torch = self._torch
        torch.manual_seed(seed)
        ids = torch.tensor(prompts)
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
        return (out.shape[1] - ids.shape[1]) * out.shape[0]


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
        peer = {"tunix": Tunix, "transformers": Transformers}[kind](model, config, cache_length)
    except Exception as error:  # told to the other end in one line
        answer({"error": f"{type(error).__name__}: {error}"[:400]})
        return
    answer({"peer": peer.name, "python": sys.version.split()[0]})
    for line in sys.stdin:
        request = json.loads(line)
        prompts = [ids for ids in request["prompts"] for _ in range(request["group_size"])]
        start = time.perf_counter()
        try:
            tokens = peer.generate(prompts, request["new_tokens"], request["seed"])
        except Exception as error:  # out of memory, most likely: the other contenders go on
            answer({"error": f"{type(error).__name__}: {error}"[:400]})
            continue
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer({"seconds": time.perf_counter() - start, "tokens": tokens, "peak_mb": peak})


if __name__ == "__main__":
    main()
