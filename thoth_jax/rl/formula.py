"""The objective of a run, spelt out as text."""

from thoth_jax.rl.advantages import BASELINES, SCALES, ZERO_RANGE
from thoth_jax.rl.checks import check_choice
from thoth_jax.rl.objectives import check_aggregation, check_options
from thoth_jax.rl.shaping import CORRECTION_LEVELS, CORRECTION_MODES

_BASELINE = {"mean": "mean of the group", "leave_one_out": "mean of the group's other samples"}
_RATIO = {
    "token": "exp(logp[i,t] - logp_old[i,t])",
    "sequence": "exp(mean over t of (logp[i,t] - logp_old[i,t])), one per completion",
    "sequence_token": "exp(mean over t of (logp[i,t] - logp_old[i,t])), gradient of token t: r[i] x grad logp[i,t]",
}
_KL = {
    "k3": "exp(-d[i,t]) + d[i,t] - 1",
    "k1": "d[i,t]",
    "k2": "d[i,t]^2 / 2",
    "abs": "|d[i,t]|",
}
_TOTAL = {
    "token_mean": "sum over i, t of l[i,t] / number of tokens",
    "sequence_mean_token_mean": "mean over i of (mean over t of l[i,t])",
    "sequence_mean_token_sum": "mean over i of (sum over t of l[i,t])",
    "constant": "sum over i, t of l[i,t] / (number of completions x {constant:g})",
}


def formula(
    *,
    scale_rewards: str = "group",
    baseline: str = "mean",
    epsilon: float = 1e-4,
    ddof: int = 1,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    dual_clip: float | None = None,
    level: str = "token",
    aggregation: str = "token_mean",
    constant: float | None = None,
    kl_coef: float = 0.0,
    kl_estimator: str = "k3",
    kl_clamp: tuple[float, float] | None = None,
    kl_in_reward: float = 0.0,
    entropy_coef: float = 0.0,
    mask_truncated: bool = False,
    overlong: tuple[int, float] | None = None,
    max_completion_length: int | None = None,
    rollout_correction: tuple[str, float, str] | None = None,
    temperature: float = 1.0,
    num_iterations: int = 1,
) -> str:
    """The resolved objective as a few lines of text, one quantity a line.

    The arguments are those of `group_advantages`, `policy_loss` and `rl.shaping`; `kl_in_reward` is the coefficient
    of the KL in the reward, `overlong` is (buffer, penalty), `rollout_correction` is (level, cap, mode).

    Raises:
      InputError: an option is unknown, out of range or of no effect.
    """
    check_choice("scale_rewards", scale_rewards, SCALES)
    check_choice("baseline", baseline, BASELINES)
    check_options(epsilon_low, epsilon_high, dual_clip, level, kl_coef, kl_estimator, kl_clamp, entropy_coef)
    check_aggregation(aggregation, constant)

    lines = []
    if temperature != 1:
        lines.append(("logp", f"log softmax(logits / {temperature:g}) of the sampled token"))
    reward = "reward of the task"
    if overlong is not None and overlong[0] > 0:
        buffer, penalty = overlong
        limit = "max_completion_length" if max_completion_length is None else f"{max_completion_length}"
        reward += f" + {penalty:g} x clip(({limit} - {buffer} - length[i]) / {buffer}, -1, 0)"
    if kl_in_reward:
        reward += f" - {kl_in_reward:g} x sum over t of (logp_old[i,t] - logp_ref[i,t])"
    lines.append(("reward", f"R[i] = {reward}"))

    advantage = f"R[i] - {_BASELINE[baseline]}"
    if scale_rewards != "none":
        kind = "sample" if ddof == 1 else "population"
        advantage = f"({advantage}) / ({kind} std of the {scale_rewards} + {epsilon:g})"
    lines.append(("advantage", f"A[i] = {advantage}; 0 where a group's rewards span at most {ZERO_RANGE:g}"))

    lines.append(("ratio", f"r[i,t] = {_RATIO[level]}"))
    if num_iterations == 1:
        lines.append(("", "(1 in value where each batch of rollouts gives one update)"))
    surrogate = f"S[i,t] = min(r[i,t] A[i], clip(r[i,t], {1 - epsilon_low:g}, {1 + epsilon_high:g}) A[i])"
    if dual_clip is not None:
        surrogate += f", at least {dual_clip:g} A[i] where A[i] < 0"
    lines.append(("surrogate", surrogate))
    weighted = "S[i,t]"
    if rollout_correction is not None:
        correction_level, cap, mode = rollout_correction
        check_choice("rollout_correction.level", correction_level, CORRECTION_LEVELS)
        check_choice("rollout_correction.mode", mode, CORRECTION_MODES)
        product = "product over t of " if correction_level == "sequence" else ""
        beyond = f"at most {cap:g}" if mode == "truncate" else f"0 above {cap:g}"
        lines.append(("correction", f"w[i,t] = {product}exp(logp_old[i,t] - logp_rollout[i,t]), {beyond}"))
        weighted = "w[i,t] S[i,t]"
    loss = f"l[i,t] = -{weighted}"
    if kl_coef:
        loss += f" + {kl_coef:g} KL[i,t]"
    if entropy_coef:
        loss += f" {'-' if entropy_coef > 0 else '+'} {abs(entropy_coef):g} H[i,t]"
    lines.append(("token loss", loss))
    if kl_coef:
        clamp = "" if kl_clamp is None else f", d clamped to +-{kl_clamp[0]:g}, KL to +-{kl_clamp[1]:g}"
        lines.append(("KL", f"{kl_estimator}: {_KL[kl_estimator]}, d = logp - logp_ref{clamp}"))
    lines.append(("loss", f"{_TOTAL[aggregation].format(constant=constant or 0)}, over the whole batch"))
    if mask_truncated:
        lines.append(("", "(completions cut off at the length limit are left out of the loss)"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in lines)
