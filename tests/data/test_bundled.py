"""The bundled sample: sound in form, perfect under SCORE, and a tokenizer that can be made again."""

import json

import pytest

from thoth_jax.data import bundled
from thoth_jax.data.bundled import train_tokenizer
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.protocol import grammar, schema
from thoth_jax.rewards.score import score_batch

FIELDS = {"id", "type", "level", "split", "question", "think", "key", "orc", "note", "action"}
METADATA = {"exp_name", "abstract", "materials", "equipments", "procedures", "notes"}
TYPES = {"overview_qa", "specific_step_qa", "retrieval", "planning"}
TYPES |= {"troubleshooting", "constraint", "scaling", "safety"}


@pytest.fixture(scope="module")
def rows():
    return [row.data for row in schema.read_rows(bundled.path("items.jsonl")).rows]


@pytest.fixture(scope="module")
def items():
    return schema.read_items(bundled.path("items.jsonl")).items


def test_unknown_file_is_refused():
    with pytest.raises(KeyError, match="no bundled file 'item.jsonl'; there are protocols.jsonl"):
        bundled.path("item.jsonl")


def test_item_rows(rows):
    assert len(rows) == 10 and len({row["id"] for row in rows}) == 10
    assert sorted(row["split"] for row in rows) == ["eval"] * 2 + ["train"] * 8
    assert {row["type"] for row in rows} == TYPES
    for row in rows:
        assert set(row) == FIELDS
        assert 2 <= len(row["key"].split("\n")) <= 4


def test_answers_are_short_and_well_formed(rows, items):
    for row, item in zip(rows, items, strict=True):
        assert len(item.answer.split()) <= 160
        parsed = grammar.parse(item.answer)
        assert parsed.sketch, (item.id, parsed)
        steps = parsed.sketch.steps
        assert row["action"] == list(dict.fromkeys(step.action for step in steps))
        assert row["key"].replace("Step", "step").islower()
        assert all(step.objects and step.parameters for step in steps)
        assert all(sentence.endswith(".") for sentence in parsed.sketch.orc)
        assert grammar.render(parsed.sketch) == item.answer


def test_gold_answers_score_the_ideal(items):
    answers = [item.answer for item in items]
    score = score_batch(answers, answers)
    assert score.total.tolist() == [2.5] * 10, score.reasons
    assert score.coverage.tolist() == [1.0] * 10


def test_other_answers_score_less(items):
    answers = [item.answer for item in items]
    assert max(score_batch(answers, answers[1:] + answers[:1]).total.tolist()) < 2.5


def test_documents():
    rows = [row.data for row in schema.read_rows(bundled.path("protocols.jsonl")).rows]
    assert len(rows) == 10
    for row in rows:
        assert set(row) == METADATA and all(row.values())
    documents, bad = schema.read_documents(bundled.path("protocols.jsonl"))
    assert len(documents) == 10 and not bad
    assert all(document.startswith("Experiment Name: ") for document in documents)


def test_retraining_gives_the_same_tokenizer(tmp_path):
    path = tmp_path / "tokenizer.model"
    train_tokenizer.train(path)
    command = "python -m thoth_jax.data.bundled.train_tokenizer"
    message = f"the texts or the prompts changed since the tokenizer was trained: run {command}"
    assert path.read_bytes() == bundled.path("tokenizer.model").read_bytes(), message


def test_tokenizer_covers_the_sample(items):
    tokenizer = load_tokenizer(bundled.path("tokenizer.model"))
    assert 512 <= len(tokenizer) <= 1024
    assert bundled.path("tokenizer.model").stat().st_size < 100_000
    for text in train_tokenizer.texts():
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for text in ("über 5 µm — 10⁶\n\n\tcells  ", json.dumps({"°": ["β", "細胞"]}, ensure_ascii=False)):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    longest = max(len(tokenizer.encode_answer(item.answer)) for item in items)
    assert longest <= 384, longest
