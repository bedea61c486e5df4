"""SCORE for trainers of other stacks: as a TRL reward function, and as verl's compute_score.

TRL:   GRPOTrainer(reward_funcs=[trl_reward()], ...)            the data set's column "gold" holds the gold answers
verl:  custom_reward_function.path=.../thoth_jax/rewards/adapters.py  custom_reward_function.name=compute_score
"""

from collections.abc import Callable, Sequence
from typing import Any

from thoth_jax.rewards.score import COMPONENTS, ScoreConfig, score_batch


def trl_reward(config: ScoreConfig = ScoreConfig(), gold_column: str = "gold") -> Callable[..., list[float | None]]:  # noqa: B008
    """A reward function as TRL's GRPOTrainer and RLOOTrainer call it.

    The function is called with keyword arguments: `completions` (texts, or chats: lists of messages, whose last one is
    scored), and one list for each column of the data set; it returns one number a completion, None where the row has no
    gold (TRL then leaves this reward out of that sample).

    Args:
      config: of SCORE.
      gold_column: data set column with full gold answers or key blocks.

    Raises (when called):
      ValueError: the data set has no such column; a gold that cannot be parsed.
    """

    def score(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        golds = columns.get(gold_column)
        if golds is None:
            raise ValueError(f"the data set has no column {gold_column!r} with gold answers")
        rows = [row for row, gold in enumerate(golds) if gold is not None]
        totals = score_batch([_text(completions[row]) for row in rows], [golds[row] for row in rows], config).total
        rewards: list[float | None] = [None] * len(completions)
        for row, total in zip(rows, totals.tolist(), strict=True):
            rewards[row] = total
        return rewards

    return score  # TRL names the metric after the function


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **settings: Any
) -> dict[str, float]:
    """One answer, as verl's naive reward manager calls it.

    Args:
      data_source, extra_info: not looked at.
      solution_str: the model's text.
      ground_truth: full gold answer or key block.
      settings: fields of ScoreConfig (verl: custom_reward_function.reward_kwargs); the authors' environment variables
        go before them, see `ScoreConfig.from_env`.

    Returns:
      {"score": SCORE, and its components}; verl takes "score" as the reward and logs the rest.

    Raises:
      ValueError: the gold cannot be parsed; a setting that ScoreConfig does not have.
    """
    return compute_scores([data_source], [solution_str], [ground_truth], [extra_info], **settings)[0]


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str],
    extra_infos: Sequence[Any] | None = None,
    **settings: Any,
) -> list[dict[str, float]]:
    """A batch of answers, as verl's batch reward manager calls it: one kernel call instead of one per answer."""
    try:
        config = ScoreConfig.from_env(**settings)
    except TypeError as error:
        raise ValueError(f"reward_kwargs: {error}") from None
    found = score_batch(solution_strs, ground_truths, config)
    columns = {name: getattr(found, name).tolist() for name in COMPONENTS}
    columns["score"] = columns.pop("total")
    return [{name: values[row] for name, values in columns.items()} for row in range(len(solution_strs))]


def _text(completion: Any) -> str:
    """The text of a completion, the last turn of a chat; "" where there is none."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, list):  # content parts
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
