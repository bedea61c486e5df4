"""Reading a batch at once equals reading each answer by the grammar."""

import random

import numpy as np
import pytest

from tests.rewards.conftest import make_pair
from tests.rewards.test_hostile import adversarial, mutate
from thoth_jax.protocol import Sketch, Step, grammar, render
from thoth_jax.protocol.scan import GoldError, read_answers, read_golds

STEP = Step("mix", ("agar", "water"), ("1 min",))


def text(*steps: Step, orc=None, note="Gloves.") -> str:
    return render(Sketch("why", steps, tuple(orc or ["mix it"] * len(steps)), note))


def odd_texts() -> list[str]:
    """Spellings at the border of what is read in one scan."""
    usual = text(STEP, STEP)
    marked = [
        usual.replace("agar", f"ag{mark}ar") for mark in ("\x00", "\x01", "\x02", "\x03", "\x1f", "\u2028", "\x85")
    ]
    quoted = [usual.replace("agar", other) for other in ('a\\"b', "a\\\\", "\\u00b5l", 'a"b', "a\nb", "a\tb", "", " ")]
    swapped = '{"objects": ["agar"], "action": "mix", "parameters": []}'
    glue = [
        usual.replace(before, after, 1)
        for before, after in (
            (", ", ","),
            (": ", ":"),
            ("], ", "] , "),
            ('"agar", "water"', '"agar" "water"'),
            ('["agar", "water"]', '["agar", "water",]'),
            ('["agar", "water"]', "[]"),
            ('["agar", "water"]', '"agar"'),
            ('["agar", "water"]', '[["agar"]]'),
            ('["agar", "water"]', "[null]"),
            ('["1 min"]', "[]"),
            ('["1 min"]', '["1 min"'),
            ('"action": ', '"action": "add", "action": '),
            ('"action": ', '"note": "x", "action": '),
            ('"parameters": ', '"objects": '),
            ('"mix"', '""'),
            ('"mix"', '" "'),
            ("Step 2", "Step 3"),
            ("Step 2", "step 2"),
            ("Step 2", "Step 02"),
            ("Step 2: {", "Step 2:{"),
            ("Step 1: mix it\n", "Step 1: \n"),
            ("Step 1: mix it\n", ""),
            ("Step 2: mix it", "Step 2: mix it\nStep 3: mix it"),
            ("\nStep 2: {", "Step 2: {"),
            ("\nStep 2: {", "\n\nStep 2: {"),
            ("\nStep 2: {", " \nStep 2: {"),
            ("Gloves.", " \n"),
            ("</note>", "</note> and"),
            ("<key>\n", "<key>"),
            ("\n</key>", "</key>"),
            ("\n", "\r\n"),
        )
    ]
    empty = Step("mix", (), ())
    many = [text(*([STEP] * count)) for count in (1, 9, 10, 99, 100, 101)]
    listed = [
        text(empty, STEP),
        text(STEP, empty),
        text(empty),
        text(Step("mix", (), ("1 min",))),
        text(STEP, STEP._replace(parameters=())),
    ]
    key_words = [
        text(Step("action", ("objects", "parameters"), ("objects",))),
        usual.replace('"agar"', '"\\"objects\\": "'),
    ]
    return [
        *marked,
        *quoted,
        usual.replace(usual[usual.index("{") : usual.index("}") + 1], swapped, 1),
        *glue,
        *many,
        *listed,
        *key_words,
    ]


def of_row(columns, row: int) -> list[Step]:
    """The steps of a row, gathered one by one."""
    steps = {}
    for number in np.nonzero(columns.row == row)[0]:
        objects = columns.object[columns.object_step == number]
        parameters = columns.parameter[columns.parameter_step == number]
        steps[int(columns.position[number])] = Step(
            columns.texts[columns.action[number]],
            tuple(columns.texts[place] for place in objects),
            tuple(columns.texts[place] for place in parameters),
        )
    return [steps[place] for place in sorted(steps)]


def check(texts) -> int:
    found = read_answers(texts)
    accepted = 0
    for row, answer in enumerate(texts):
        parsed = grammar.parse(answer)
        assert found.parsed[row] == (parsed.sketch is not None), answer[:300]
        assert found.reasons[row] == parsed.reason
        if parsed.sketch is None:
            assert found.columns.count[row] == found.orc_words[row] == found.orc_lines[row] == 0
            continue
        accepted += 1
        steps, orc = list(parsed.sketch.steps), parsed.sketch.orc
        assert found.columns.count[row] == len(steps)
        assert of_row(found.columns, row) == steps, answer[:300]
        assert found.orc_lines[row] == len(orc)
        assert found.orc_words[row] == sum(len(line.split()) for line in orc)
        numbers = {int(found.columns.position[n]): n for n in np.nonzero(found.columns.row == row)[0]}
        for place, line in enumerate(orc[: len(steps)]):
            own = np.nonzero(found.orc_step == numbers[place])[0]
            assert [found.words[at] for at in own] == line.split()
    return accepted


def test_odd_spellings_read_as_the_grammar_reads_them():
    texts = odd_texts()
    assert len(texts) - 5 > check(texts) > 10
    for one in texts:  # alone and in company
        check([one])


def test_mutated_answers_read_as_the_grammar_reads_them():
    rng = random.Random(11)
    pairs = [make_pair(rng) for _ in range(60)]
    texts = [mutate(rng, rng.choice(pair)) for pair in pairs for _ in range(5)] + [
        one for pair in pairs for one in pair
    ]
    rng.shuffle(texts)
    assert check(texts) > 90


def test_a_block_does_not_borrow_from_the_next():
    # What parts objects from parameters is spelled oddly in one block and stands without a step in the next.
    odd = text(STEP).replace('], "parameters"', '] , "parameters"')
    loose = text(STEP).replace("Step 1: {", "", 1)
    assert grammar.parse(odd).sketch is not None and grammar.parse(loose).sketch is None
    assert check([odd, loose]) == 1
    assert check([text(STEP), odd, loose, loose, odd, text(STEP), loose]) == 4


def test_hostile_answers_read_as_the_grammar_reads_them():
    texts = [one for one in adversarial() if len(one) < 300_000]
    found = read_answers(texts)
    for row, one in enumerate(texts):
        assert (found.parsed[row], found.reasons[row]) == (
            grammar.parse(one).sketch is not None,
            grammar.parse(one).reason,
        )


def test_an_empty_batch():
    assert read_answers([]).columns.count.shape == (0,)
    assert read_golds([])[0].count.shape == (0,)


def test_golds_read_as_the_grammar_reads_them():
    line = 'Step {}: {{"action": "add", "objects": [], "parameters": []{}}}'
    after = line.format(1, "") + "\n" + line.format(2, ', "after": []')
    rng = random.Random(12)
    texts = [make_pair(rng)[1] for _ in range(40)] + [after]
    texts += [one[one.index("<key>") : one.index("</key>") + 6] for one in texts[:10]]
    texts += [one[one.index("<key>") + 5 : one.index("</key>")] for one in texts[:10]]
    texts += [one for one in odd_texts() if _is_gold(one)]
    columns, orders = read_golds(texts)
    for row, one in enumerate(texts):
        steps, order = grammar.parse_gold(one)
        assert of_row(columns, row) == list(steps) and orders[row] == order, one[:300]
    assert any(order is not None for order in orders)


def _is_gold(one: str) -> bool:
    try:
        grammar.parse_gold(one)
    except ValueError:
        return False
    return True


def test_a_gold_that_cannot_be_read_is_numbered():
    refused = [one for one in odd_texts() if not _is_gold(one)]
    assert len(refused) > 10
    for one in refused:
        with pytest.raises(GoldError) as caught:
            read_golds([text(STEP), one, text(STEP)])
        assert caught.value.number == 1
