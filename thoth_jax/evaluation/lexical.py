"""SciRecipe-Eval's lexical metrics of the orc text, through the libraries that the published evaluator uses.

They come with the extra `eval`. A metric whose library, data or model is not there is missing, with the reason; it is
never 0. An answer without the four blocks has no orc and gets 0, as in the published evaluator.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thoth_jax.errors import first_line
from thoth_jax.rewards.lexical import bleu_scores, plain, rouge_scores

# The columns of the paper's tables, in their order; Table 2 leaves out Order-Tau.
TABLE = (
    "content_score",
    "order_lcs",
    "order_strict",
    "order_tau",
    "step_match",
    "bleu_avg",
    "rouge_l",
    "meteor",
    "kw_f1",
)

NAMES = {
    "bleu": ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "bleu_avg"),
    "rouge": ("rouge_1", "rouge_2", "rouge_l"),
    "meteor": ("meteor",),
    "kw_f1": ("kw_f1",),
    "bertscore": ("bertscore_precision", "bertscore_recall", "bertscore_f1"),
}

_HEADER = re.compile(r"^\s*Step\s+\d+\s*:\s*", re.IGNORECASE | re.MULTILINE)
_KEYWORDS = 64


def lexical_metrics(predicted: Sequence[str], gold: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Lexical metrics of B pairs of orc texts, `Step n:` headers included.

    bleu_1 to bleu_4 are sacrebleu's n-gram precisions of a sentence (effective order, its default smoothing), bleu_avg
    their mean, no brevity penalty; rouge_* F-measures of rouge-score with stemming; meteor NLTK's on white-space words;
    kw_f1 the F1 of two sets of 64 KeyBERT keywords (all-MiniLM-L6-v2); bertscore_* roberta-large, 24 layers, headers
    taken off. All from 0 to 1 (bertscore may be below).

    Returns:
      {name: float64 [B]} of those that could be computed, and {family: why} of the others.

    Raises:
      ValueError: the lists differ in length.
    """
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} predicted but {len(gold)} gold texts")
    said = [index for index, text in enumerate(predicted) if text.strip()]
    pairs = [(plain(predicted[index]), plain(gold[index])) for index in said]
    found, missing = {}, {}
    for family, names in NAMES.items():
        try:
            values = _FAMILIES[family](pairs) if pairs else np.zeros((0, len(names)))
        except ImportError as error:
            missing[family] = f"the package {error.name} is not installed (extra: eval)"
        except LookupError:
            missing[family] = "NLTK's WordNet data is not there (python -m nltk.downloader wordnet)"
        except OSError as error:
            missing[family] = f"its model is not there ({first_line(error)[:80]})"
        else:
            for column, name in enumerate(names):
                found[name] = np.zeros(len(predicted))
                found[name][said] = np.asarray(values, np.float64)[:, column]
    return found, missing


def averages(means: dict[str, float]) -> dict[str, float]:
    """AVG of the paper's Tables 1 and 3 (avg_9), of Table 2 (avg_8, no Order-Tau); none where a column is missing."""
    found = {}
    for name, columns in (("avg_9", TABLE), ("avg_8", [column for column in TABLE if column != "order_tau"])):
        if all(column in means for column in columns):
            found[name] = float(np.mean([means[column] for column in columns]))
    return found


def _meteor(pairs) -> list:
    from nltk.translate.meteor_score import meteor_score  # each family imports its own: optional, and slow to import

    return [[meteor_score([other.split()], one.split())] for one, other in pairs]


def _keywords(pairs) -> list:
    from keybert import KeyBERT

    model = KeyBERT("all-MiniLM-L6-v2")

    def words(text: str) -> set[str]:
        return {word.lower() for word, _ in model.extract_keywords(text, top_n=_KEYWORDS)}

    return [[_f1(words(one), words(other))] for one, other in pairs]


def _bertscore(pairs) -> Any:
    import bert_score

    one, other = ([_HEADER.sub("", text) for text in side] for side in zip(*pairs, strict=True))
    scores = bert_score.score(one, other, model_type="roberta-large", num_layers=24, rescale_with_baseline=False)
    return np.stack([column.numpy() for column in scores], axis=1)


def _f1(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 0.0


_FAMILIES: dict[str, Callable] = {
    "bleu": bleu_scores,
    "rouge": rouge_scores,
    "meteor": _meteor,
    "kw_f1": _keywords,
    "bertscore": _bertscore,
}
