"""Writes the outputs of transformers and peft that tests/models/test_transformers.py compares with.

Run it in an environment with torch, transformers and peft:  python tests/models/golden/make.py
Weights are not stored: both sides draw them from the tensors' names (`draw`).
"""

import json
import pathlib
import zlib

import numpy as np

HERE = pathlib.Path(__file__).parent
SIZES = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "use_cache": True,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
CASES = {
    "qwen3": {"model_type": "qwen3", "head_dim": 10, "rope_theta": 5e4, "tie_word_embeddings": False},
    "qwen3_tied": {"model_type": "qwen3", "head_dim": 8, "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e4, "tie_word_embeddings": False},
    "qwen2_tied": {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3_yarn": {
        "model_type": "qwen3",
        "head_dim": 16,
        "rope_theta": 1e4,
        "rope_scaling": YARN,
        "tie_word_embeddings": True,
    },
    "qwen2_yarn": {
        "model_type": "qwen2",
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_theta": 500.0,
        "rope_scaling": {**YARN, "attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
        "tie_word_embeddings": False,
    },
    "qwen3_yarn_mscale": {
        "model_type": "qwen3",
        "head_dim": 12,
        "rope_theta": 1e3,
        "rope_scaling": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
        "tie_word_embeddings": True,
    },
}
ADAPTER = {"r": 3, "lora_alpha": 7.0, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "down_proj"]}
LENGTHS, STEPS = (13, 20), 24


def draw(name: str, shape) -> np.ndarray:
    """The tensor called `name`."""
    normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return (1 + 0.2 * normal if name.endswith("norm.weight") else 0.3 * normal).astype(np.float32)


def batch() -> dict[str, np.ndarray]:
    """Right-padded and left-padded rows, and both rows packed into one."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, SIZES["vocab_size"], size=length) for length in LENGTHS]
    longest = max(LENGTHS)
    right = np.stack([np.pad(row, (0, longest - len(row))) for row in rows])
    left = np.stack([np.pad(row, (longest - len(row), 0)) for row in rows])
    return {
        "right": right,
        "right_mask": np.array([[1] * n + [0] * (longest - n) for n in LENGTHS]),
        "left": left,
        "left_mask": np.array([[0] * (longest - n) + [1] * n for n in LENGTHS]),
        "packed": np.concatenate(rows)[None],
        "packed_segments": np.repeat([1, 2], LENGTHS)[None],
    }


def main() -> None:
    import peft
    import torch
    import transformers

    data = batch()
    ids = {name: torch.tensor(data[name]) for name in ("right", "left")}
    masks = {name: torch.tensor(data[f"{name}_mask"]) for name in ("right", "left")}

    def logits(model, side):
        positions = (masks[side].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            return model(ids[side], attention_mask=masks[side], position_ids=positions).logits.float().numpy()

    out = {}
    for name, case in CASES.items():
        fields = {**SIZES, **case}
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for key, tensor in model.named_parameters():
                tensor.copy_(torch.tensor(draw(key, tuple(tensor.shape))))
        for side in ("right", "left"):
            out[f"{name}/{side}"] = logits(model, side)
        prompt = torch.tensor(data["right"][1:2, : LENGTHS[1]])
        tokens = model.generate(prompt, max_new_tokens=STEPS, do_sample=False, eos_token_id=None, pad_token_id=0)
        out[f"{name}/greedy"] = tokens[0, LENGTHS[1] :].numpy()
        model.train()
        shifted = ids["right"].masked_fill(masks["right"] == 0, -100)
        loss = model(ids["right"], attention_mask=masks["right"], labels=shifted).loss
        loss.backward()
        out[f"{name}/loss"] = np.float32(loss.item())
        for key, tensor in model.named_parameters():  # the whole gradients would be large: their norm and a projection
            grad = tensor.grad.double().numpy()
            seen = draw(f"seen {key}", grad.shape).astype(np.float64)
            out[f"{name}/grad/{key}"] = np.array([np.linalg.norm(grad), (grad * seen).sum()])
        if name == "qwen3":
            model.eval()
            lora = peft.LoraConfig(task_type="CAUSAL_LM", **ADAPTER)
            adapted = peft.get_peft_model(model, lora).eval()
            with torch.no_grad():
                for key, tensor in adapted.named_parameters():
                    if "lora_" in key:
                        tensor.copy_(torch.tensor(draw(key.replace(".default", ""), tuple(tensor.shape))))
            out[f"{name}/adapted"] = logits(adapted, "right")
    out = {
        key: value.astype(np.float32) if value.dtype == np.float64 and "grad" not in key else value
        for key, value in out.items()
    }
    np.savez_compressed(HERE / "transformers.npz", **out)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft)}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
