"""Chat examples as tokens: what is learnt, and what becomes of an answer that does not fit."""

import pytest

from thoth_jax.data.encoding import encode_examples
from thoth_jax.errors import InputError
from thoth_jax.task import Example

END = 2  # also the id that pads rows


class Tokenizer:
    """Prompts are [5, 6], an answer of n words is 7, 8, ... and the end token."""

    def encode_prompt(self, messages, enable_thinking=True):
        return [5, 6]

    def encode_answer(self, text):
        return [*range(7, 7 + len(text.split())), END]


class Task:
    def messages(self, example):
        return []

    def target(self, example):
        return example.data["target"]


def encoded(target, max_length, too_long="refuse"):
    example = Example("a", {"target": target})
    found = encode_examples(
        Task(),
        [example],
        Tokenizer(),
        max_length=max_length,
        max_prompt_length=2,
        too_long=too_long,
        enable_thinking=True,
    )
    return found.samples[0]


def test_b49_the_end_token_is_learnt_although_it_pads():
    sample = encoded("one two three", 10)
    assert sample.tokens.tolist() == [5, 6, 7, 8, 9, END]
    assert sample.learn.tolist() == [False, False, True, True, True, True]


def test_b53_a_cut_answer_gets_no_end_token_and_an_uncut_one_has_it():
    assert encoded("one two three", 5).tokens[2:].tolist() == [7, 8, 9, END]
    cut = encoded("one two three", 4, "truncate")
    assert cut.tokens[2:].tolist() == [7, 8, 9] and cut.learn[2:].all()
    with pytest.raises(InputError, match="example 'a': 2 prompt \\+ 4 answer tokens"):
        encoded("one two three", 4)
