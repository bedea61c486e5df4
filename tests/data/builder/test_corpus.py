"""The bundled protocols: enough, different, split without leaks, with numbers that are believed."""

import collections
import itertools
import re

import pytest

from thoth_jax.data import bundled
from thoth_jax.data.builder import quantities, splits
from thoth_jax.data.builder.draw import Variant
from thoth_jax.errors import InputError
from thoth_jax.protocol import schema


def test_enough_protocols_of_enough_subfields(corpus):
    assert len(corpus.protocols) >= 80
    assert len({protocol.subfield for protocol in corpus.protocols}) >= 12


def test_protocols_are_long_enough_and_have_names_of_their_own(corpus):
    assert all(len(protocol.steps) >= 8 for protocol in corpus.protocols)
    assert len({protocol.name for protocol in corpus.protocols}) == len(corpus.protocols)


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


def test_splits_are_large_enough(corpus):
    counts = collections.Counter(corpus.split.values())
    assert counts[splits.TEST] >= 20 and counts[splits.VALIDATION] >= 10 and counts[splits.RL] >= 12


def test_splits_are_by_protocol_and_test_every_subfield(corpus):
    counts, size = collections.Counter(corpus.split.values()), len(corpus.protocols)
    shares = [counts[split] / size for split in (splits.TEST, splits.VALIDATION, splits.RL)]
    assert shares == pytest.approx([1 / 4, 1 / 8, 3 / 16], abs=1 / size) and counts[splits.SFT] > size / 3
    tested = {protocol.subfield for protocol in corpus.of(splits.TEST)}
    assert tested == {protocol.subfield for protocol in corpus.protocols}


def test_no_held_out_protocol_leaks_into_training(corpus):
    """Neither name, aim, sentence nor reason of a held-out protocol stands in what training reads."""
    rows = [row.data for row in schema.read_rows(bundled.path("items.jsonl")).rows]
    rows += [row.data for row in schema.read_rows(bundled.path("subtasks.jsonl")).rows]
    rows += [row.data for row in schema.read_rows(bundled.path("protocols.jsonl")).rows]
    split = {"exp_name": corpus.split, "protocol": corpus.split}
    trained = []
    for row in rows:
        own = split["protocol"][row.get("protocol") or row["exp_name"]]
        assert row.get("split", own) == own
        if own in (splits.SFT, splits.RL):
            trained.append(str(row))
    text = "\n".join(trained).lower()
    for protocol in corpus.of(splits.TEST, splits.VALIDATION):
        assert protocol.name.lower() not in text and protocol.aim.lower() not in text, protocol.name
        lines = Variant(protocol).lines(protocol.steps)
        found = [line.say for line in lines if line.say.lower() in text]
        assert len(found) <= 0.3 * len(lines), (protocol.name, found)
        assert not [step.why for step in protocol.steps if len(step.why) > 40 and step.why.lower() in text]


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


def test_numbers_are_believed_and_listed(corpus):
    text = bundled.path("checked_numbers.txt").read_text()
    assert text == quantities.report(corpus.protocols)
    assert len(quantities.check(corpus.protocols)) > 1000
    assert all(protocol.name in text for protocol in corpus.protocols)


def test_a_number_that_nobody_would_believe_is_refused(corpus):
    import dataclasses

    from thoth_jax.data.builder.source import Quantity

    protocol = corpus.protocols[0]
    odd = dataclasses.replace(protocol.steps[0], parameters=(Quantity("{} °C", ("37", "370")),))
    with pytest.raises(InputError, match="'370 °C': not between -196 and 135 °C"):
        quantities.check([dataclasses.replace(protocol, steps=(odd, *protocol.steps[1:]))])


def test_records(corpus):
    rows = [row.data for row in schema.read_rows(bundled.path("protocols.jsonl")).rows]
    fields = {"exp_name", "abstract", "materials", "equipments", "procedures", "notes"}
    assert len(rows) == len(corpus.protocols)
    for row in rows:
        assert fields < set(row) and all(row.values())
        assert len(row["procedures"].split("\n")) >= 8
