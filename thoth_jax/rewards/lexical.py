"""Overlap of words with the gold answer: the reward that SCORE is compared with in the ablation.

The paper's "Vanilla" reward is made of BLEU-AVG, ROUGE-L and BERTScore; how they are combined is not published.
BERTScore needs a large model of its own, so it is left out here.
"""

import math
from collections.abc import Sequence

import numpy as np

from thoth_jax.errors import InputError, nearest
from thoth_jax.protocol.grammar import block_text
from thoth_jax.task import Completion, Example, Rewards

_BLOCKS = ("orc", "answer")
# ROUGE-L takes time in proportion to the words of both texts; so much longer than any gold is wrong anyway.
_LONGEST = 20_000


def lexical_reward(
    examples: Sequence[Example],
    completions: Sequence[Completion],
    *,
    bleu: float = 0.5,
    rouge: float = 0.5,
    block: str = "orc",
) -> Rewards:
    """bleu * BLEU-AVG + rouge * ROUGE-L of each answer against the gold's, as SciRecipe-Eval computes them.

    An answer without exactly one orc block, a blank one and one of more than 20,000 letters get 0. Rows whose gold has
    no such text get no reward (valid is False).

    Args:
      examples: of the protocol task.
      completions: any texts.
      bleu, rouge: weights, at least 0 and not both 0.
      block: "orc", its text with the `Step n:` headers, or "answer", all of it.

    Raises:
      InputError: another value; examples of another task; sacrebleu or rouge-score is not installed (extra: eval).
    """
    if block not in _BLOCKS:
        raise InputError(f"lexical_reward: block={block!r}{nearest(block, _BLOCKS)}")
    for name, weight in (("bleu", bleu), ("rouge", rouge)):
        if not math.isfinite(weight) or weight < 0:
            raise InputError(f"lexical_reward: {name}={weight}: expected a number of at least 0")
    if not bleu and not rouge:
        raise InputError("lexical_reward: bleu and rouge are both 0, nothing would be learnt")
    golds = [_gold(example, block) for example in examples]
    texts = [_said(completion.text, block) for completion in completions]
    rows = [row for row, (text, gold) in enumerate(zip(texts, golds, strict=True)) if text.strip() and gold]
    pairs = [(plain(texts[row]), plain(golds[row])) for row in rows]
    parts = {}
    for name, metric, weight in (("bleu_avg", bleu_scores, bleu), ("rouge_l", rouge_scores, rouge)):
        parts[name] = np.zeros(len(texts), np.float32)
        if weight and pairs:
            try:
                parts[name][rows] = [scores[-1] for scores in metric(pairs)]
            except ImportError as error:
                raise InputError(
                    f"lexical_reward: the package {error.name} is not installed (pip install 'thoth-jax[eval]')"
                ) from None
    total = (bleu * parts["bleu_avg"] + rouge * parts["rouge_l"]).astype(np.float32)
    return Rewards(total=total, parts=parts, valid=np.array([bool(gold) for gold in golds]), raw=total)


def _gold(example: Example, block: str) -> str:
    item = example.data.get("item")
    if item is None:
        raise InputError(f"lexical_reward: example {example.id!r} has no protocol item (task protocol only)")
    return (item.orc if block == "orc" else item.answer).strip()


def _said(text: str, block: str) -> str:
    found = block_text(text, "orc") if block == "orc" else text
    return "" if found is None or len(found) > _LONGEST else found


def plain(text: str) -> str:
    """No lone surrogates, which the libraries cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def bleu_scores(pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
    """sacrebleu's n-gram precisions 1 to 4 and their mean for each pair (predicted, gold), 0 to 1: effective order, its
    default smoothing, no brevity penalty.

    Raises:
      ImportError: sacrebleu is not installed.
    """
    from sacrebleu.metrics import BLEU  # optional, and slow to import

    metric = BLEU(effective_order=True)
    precisions = [np.asarray(metric.sentence_score(one, [other]).precisions) / 100 for one, other in pairs]
    return [[*row, row.mean()] for row in precisions]


def rouge_scores(pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
    """rouge-score's F-measures of ROUGE-1, ROUGE-2 and ROUGE-L with stemming for each pair (predicted, gold).

    Raises:
      ImportError: rouge-score is not installed.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    scores = [scorer.score(other, one) for one, other in pairs]
    return [[score[name].fmeasure for name in ("rouge1", "rouge2", "rougeL")] for score in scores]
