"""The bundled protocols: enough, different, split without leaks, with numbers that are believed."""

import collections
import itertools
import re

import pytest

from thoth_jax.data.builder import quantities, splits
from thoth_jax.data.builder.draw import Variant
from thoth_jax.errors import InputError


def normalised(step) -> str:
    """Action, objects and settings in lower case, without numbers."""
    return " ".join(re.findall(r"[^\W\d]+", f"{step.action} {step.objects} {step.parameters}".lower()))


def test_no_two_protocols_share_more_than_30_percent_of_their_steps(corpus):
    steps = {
        protocol.name: {normalised(line.step) for line in Variant(protocol).lines(protocol.steps)}
        for protocol in corpus.protocols
    }
    for (one, first), (other, second) in itertools.combinations(steps.items(), 2):
        shared = len(first & second) / min(len(first), len(second))
        assert shared <= 0.3, (one, other, first & second)


def test_words_of_the_test_protocols_occur_in_training(corpus):
    known = set().union(*(splits.words_of(protocol) for protocol in corpus.of(splits.SFT, splits.RL)))
    shares = []
    for protocol in corpus.of(splits.TEST):
        words = splits.words_of(protocol)
        shares.append(len(words & known) / len(words))
    assert sum(shares) / len(shares) > 0.8 and min(shares) > 0.65, shares


def test_too_few_protocols_cannot_be_split(corpus):
    with pytest.raises(InputError, match="at least 8"):
        splits.assign(corpus.protocols[:7])
    few = splits.assign(corpus.protocols[:12])
    assert collections.Counter(few.values()).keys() == set(splits.SPLITS)


def test_a_number_that_nobody_would_believe_is_refused(corpus):
    import dataclasses

    from thoth_jax.data.builder.source import Quantity

    protocol = corpus.protocols[0]
    odd = dataclasses.replace(protocol.steps[0], parameters=(Quantity("{} °C", ("37", "370")),))
    with pytest.raises(InputError, match="'370 °C': not between -196 and 135 °C"):
        quantities.check([dataclasses.replace(protocol, steps=(odd, *protocol.steps[1:]))])
