"""Thoth, stage 2: LoRA fine-tuning on Sketch-and-Fill answers (arXiv 2510.15600, section 4; its released YAML)."""

from thoth_jax.config import defaults


def get_config():
    config = defaults("sft")
    config.run_dir = "runs/thoth_8b/sft"
    config.init_from = "runs/thoth_8b/pretrain"  # its adapter is merged into the base
    config.task_args.train = "data/sft.json"  # rows {"conversations", "system"}
    config.task_args.holdout = 0.01  # val_size

    config.lora.rank = 32
    config.lora.alpha = 64.0  # not in the YAML; its tool's default is 2 x rank
    config.lora.dropout = 0.0  # not in the YAML; its tool's default
    config.lora.targets = ("all",)

    config.learning_rate = 3e-4
    config.schedule = "cosine"
    config.warmup_ratio = 0.05
    config.num_epochs = 5.0
    config.batch_size = 64  # 1 per device x 8 accumulation x 8 GPUs
    config.max_length = 8192
    config.packing = False  # one example a row, as the tool's default
    config.tokens_per_microbatch = 8 * 8192  # 1 row per GPU
    config.model.dtype = "bfloat16"
    config.enable_thinking = True  # template qwen3
    config.eval_every = 100
    # max_samples 1000000 of the YAML is a cap on rows; cut the file instead.

    # Not stated anywhere, our choice (the defaults of the tool that was used, where it has one).
    config.too_long = "truncate"
    config.max_prompt_length = 4096
    config.max_completion_length = 1024
    config.weight_decay = 0.0
    config.adam_b1 = 0.9
    config.adam_b2 = 0.999
    config.max_grad_norm = 1.0
    config.seed = 42
    config.model.remat = "full"
    config.save_every = 500
    config.keep_checkpoints = 2
    config.eval_examples = 64
    config.mesh.fsdp = -1
    return config
