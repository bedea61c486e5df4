"""Validation of the constants that select and scale an objective."""

import math
from collections.abc import Sequence

from thoth_jax.errors import InputError, nearest

# Spellings of other libraries (TRL, verl, Tunix) -> (our option, our value). Answered, not accepted: a run's
# configuration should say what it does in one vocabulary.
FOREIGN = {
    "token-mean": ("aggregation", "token_mean"),
    "dapo": ("aggregation", "token_mean"),
    "bnpo": ("aggregation", "token_mean"),
    "grpo": ("aggregation", "sequence_mean_token_mean"),
    "seq-mean-token-mean": ("aggregation", "sequence_mean_token_mean"),
    "sequence-mean-token-mean": ("aggregation", "sequence_mean_token_mean"),
    "seq-mean-token-sum": ("aggregation", "sequence_mean_token_sum"),
    "sequence-mean-token-sum": ("aggregation", "sequence_mean_token_sum"),
    "seq-mean-token-sum-norm": ("aggregation", "constant"),
    "sequence-mean-token-sum-norm": ("aggregation", "constant"),
    "dr_grpo": ("aggregation", "constant"),
    "gspo": ("level", "sequence"),
    "gspo-token": ("level", "sequence_token"),
    "seq": ("level", "sequence"),
    "low_var_kl": ("kl_estimator", "k3"),
    "kl": ("kl_estimator", "k1"),
    "mse": ("kl_estimator", "k2"),
    "mse_kl": ("kl_estimator", "k2"),
    "rloo": ("baseline", "leave_one_out"),
}


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise InputError naming option, value and the valid values, unless `value` is one of `choices`."""
    if value in choices:
        return
    option, ours = FOREIGN.get(value, (None, None)) if isinstance(value, str) else (None, None)
    if option == name and ours in choices:
        raise InputError(f"{name}={value!r}: here this is called {ours!r}")
    raise InputError(f"{name}={value!r}: unknown value{nearest(str(value), choices)}")


def check_number(
    name: str, value: float, low: float = -math.inf, high: float = math.inf, *, above: bool = False
) -> None:
    """Raise InputError unless `value` is a number in [low, high] (in (low, high] with `above`)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if number and low <= value <= high and not (above and value == low):
        return
    lower = f"{'>' if above else '>='} {low:g}" if low > -math.inf else ""
    upper = f"<= {high:g}" if high < math.inf else ""
    wanted = " and ".join(part for part in (lower, upper) if part)
    raise InputError(f"{name}={value!r}: must be a number{' ' + wanted if wanted else ''}")


def check_finite(name: str, value: float, low: float = -math.inf, *, above: bool = False) -> None:
    """As `check_number`, and infinity is refused."""
    check_number(name, value, low, above=above)
    if math.isinf(value):
        raise InputError(f"{name}={value!r}: must be finite")
