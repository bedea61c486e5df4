"""AdamW or Muon, with warm-up, schedule, weight-decay mask and clipping by the global norm."""

import jax
import optax

from thoth_jax.errors import InputError


def learning_rate_schedule(config, num_steps: int) -> optax.Schedule:
    """Update number -> learning rate: linear warm-up over warmup_ratio, then cosine or linear to 0, or constant.

    Args:
      config: keys learning_rate, schedule, warmup_ratio.
      num_steps: optimiser updates of the whole run.
    """
    peak = config.learning_rate
    warmup = round(config.warmup_ratio * num_steps)
    rest = max(num_steps - warmup, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(peak, rest),
    }[config.schedule]
    return (
        optax.join_schedules([optax.linear_schedule(0.0, peak, max(warmup, 1)), after], [warmup]) if warmup else after
    )


def decayed(trainable):
    """Tree of bools: weight decay is for matrices only, not for norms and biases.

    Norm gains and q/k/v biases are stacked over layers, so the name tells, not the rank of the array.
    """

    def is_matrix(path, _leaf):
        names = "/".join(str(entry) for entry in path)
        return not ("norm" in names or "bias" in names)

    return jax.tree_util.tree_map_with_path(is_matrix, trainable)


# What Muon orthogonalises: the linear maps of a layer [L, inputs, outputs], by the axes of their outputs.
_OUTPUTS = {
    "q_proj": (2, 3), "k_proj": (2, 3), "v_proj": (2, 3), "o_proj": (3,), "gate_proj": (2,), "up_proj": (2,),
    "down_proj": (2,),
}  # fmt: skip
# Root mean square of an orthogonal update: that of AdamW's, so that learning rates carry over (arXiv 2502.16982).
_MUON_RMS = 0.2
_MUON_BETA = 0.95


def make_optimizer(config, num_steps: int) -> optax.GradientTransformation:
    """The optimiser of a run. Moments are float32 like the trained parameters; frozen leaves never reach it.

    With optimizer=muon the linear maps of the layers follow Muon (orthogonalised momentum), all else AdamW.

    Raises:
      InputError: Muon for adapters.
    """
    if config.optimizer == "muon" and config.lora.rank:
        raise InputError(
            f"optimizer=muon: it is for whole matrices; adapters (lora.rank={config.lora.rank}) take adamw"
        )
    rate = learning_rate_schedule(config, num_steps)
    adamw = optax.adamw(rate, b1=config.adam_b1, b2=config.adam_b2, weight_decay=config.weight_decay, mask=decayed)
    if config.optimizer == "muon":
        muon = optax.contrib.muon(
            rate,
            beta=_MUON_BETA,
            weight_decay=config.weight_decay,
            consistent_rms=_MUON_RMS,
            muon_weight_dimension_numbers=_dimensions,
        )
        update = optax.partition({"muon": muon, "adamw": adamw}, _rule)
    else:
        update = adamw
    clip = [optax.clip_by_global_norm(config.max_grad_norm)] if config.max_grad_norm > 0 else []
    return optax.chain(*clip, update)


def _rule(trainable):
    """Tree of "muon" for linear maps of layers, "adamw" for embeddings, norms and biases."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "muon" if path[-1].key in _OUTPUTS else "adamw", trainable)


def _dimensions(trainable):
    def one(path, leaf):
        outputs = _OUTPUTS[path[-1].key]
        return optax.contrib.MuonDimensionNumbers(tuple(range(1, outputs[0])), outputs)

    return jax.tree_util.tree_map_with_path(one, trainable)
