"""AdamW with warm-up, schedule, weight-decay mask and clipping by the global norm."""

import jax
import optax


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


def make_optimizer(config, num_steps: int) -> optax.GradientTransformation:
    """The optimiser of a run. Moments are float32 like the trained parameters; frozen leaves never reach it."""
    steps = []
    if config.max_grad_norm > 0:
        steps.append(optax.clip_by_global_norm(config.max_grad_norm))
    steps.append(
        optax.adamw(
            learning_rate_schedule(config, num_steps),
            b1=config.adam_b1,
            b2=config.adam_b2,
            weight_decay=config.weight_decay,
            mask=decayed,
        )
    )
    return optax.chain(*steps)
