"""google-tunix's Qwen3 from a Hugging Face directory. Imports nothing at its top, see answering.py."""

import json
import os


def tunix_config(model: str):
    """Its model configuration, from config.json."""
    from tunix.models.qwen3 import model as qwen3

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return qwen3.ModelConfig(
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


def load_tunix(model: str, rank: int = 0, alpha: float = 16.0):
    """The model; with a rank it has adapters on all seven linear maps."""
    from tunix.models.qwen3 import params

    policy = params.create_model_from_safe_tensors(model, tunix_config(model))
    if not rank:
        return policy
    import qwix

    provider = qwix.LoraProvider(
        module_path=".*q_proj|.*k_proj|.*v_proj|.*o_proj|.*gate_proj|.*up_proj|.*down_proj", rank=rank, alpha=alpha
    )
    return qwix.apply_lora_to_model(policy, provider, **policy.get_model_input())


class IdTokenizer:
    """Texts are the ids themselves ("3 14 15"); its end token lies outside of the vocabulary."""

    def __init__(self, vocabulary: int):
        self._outside = vocabulary

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
