"""The bundled files: made again byte for byte, and what the task reads of them."""

import itertools
import json

import pytest

from thoth_jax.data import bundled
from thoth_jax.data.builder.bundle import build_bundle, compared
from thoth_jax.data.bundled import train_tokenizer
from thoth_jax.errors import InputError
from thoth_jax.models.tokenizer import PROTOCOL_SYMBOLS, load_tokenizer
from thoth_jax.protocol import prompts, schema
from thoth_jax.tasks.protocol import ProtocolTask


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(bundled.path("tokenizer.model"))


def test_unknown_file_is_refused():
    with pytest.raises(KeyError, match="no bundled file 'item.jsonl'; there are protocols.jsonl"):
        bundled.path("item.jsonl")


def test_building_again_gives_the_shipped_bytes(tmp_path):
    build_bundle(bundled.source_directory(), tmp_path)
    command = "thoth data build --source bundled --out thoth_jax/data/bundled"
    for name in bundled.FILES:
        same = (tmp_path / name).read_bytes() == bundled.path(name).read_bytes()
        assert same, f"{name}: the sources, the builders or the prompts changed since it was built: run {command}"
    assert compared(tmp_path, True).count("equal to the shipped file") == len(bundled.FILES)
    (tmp_path / "items.jsonl").write_text("x")
    assert "items.jsonl  1 bytes  differs from" in compared(tmp_path, True)


def test_the_tokenizer_alone_is_trained_again(tmp_path):
    train_tokenizer.train(tmp_path / "tokenizer.model")
    assert (tmp_path / "tokenizer.model").read_bytes() == bundled.path("tokenizer.model").read_bytes()


def test_shipped_files_are_small():
    assert sum(bundled.path(name).stat().st_size for name in bundled.FILES) < 2_600_000
    assert bundled.path("tokenizer.model").stat().st_size < 100_000


def test_tokenizer(tokenizer):
    assert 2000 <= len(tokenizer) <= 4000
    for symbol in (
        *PROTOCOL_SYMBOLS,
        "<think>",
        "</note>",
        '", "objects": ["',
        '"], "parameters": ["',
        " °C",
        " µl",
        " min",
    ):
        assert len(tokenizer.encode(symbol)) == 1, symbol
    for marker in ("<|im_start|>", "<|im_end|>"):
        assert len(tokenizer.encode(marker, allow_special=True)) == 1 < len(tokenizer.encode(marker))
    for item in schema.read_items(bundled.path("items.jsonl")).items[:200]:
        for text in (item.answer, prompts.user_prompt(item.question, item.actions)):
            assert tokenizer.decode(tokenizer.encode(text)) == text
    for text in ("über 5 µm — 10⁶\n\n\tcells  ", json.dumps({"°": ["β", "細胞"]}, ensure_ascii=False)):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_glue_pieces_shorten_answers_by_a_quarter(tokenizer, tmp_path):
    from thoth_jax.models.tokenizer import train_sentencepiece

    answers = [item.answer for item in schema.read_items(bundled.path("items.jsonl")).items[:400]]
    train_sentencepiece(answers, tmp_path / "plain.model", 1800, symbols=("\n",))
    plain = load_tokenizer(tmp_path / "plain.model")
    assert sum(len(tokenizer.encode(a)) for a in answers) < 0.75 * sum(len(plain.encode(a)) for a in answers)


def protocols_of(task, split):
    return {example.id.rsplit("-", 2)[0] for example in task.examples(split)}


def test_splits_of_the_task_do_not_overlap():
    task = ProtocolTask()
    found = {split: protocols_of(task, split) for split in ("train", "eval", "test")}
    found["rl"] = protocols_of(ProtocolTask(pool="rl"), "train")
    assert all(found.values())
    for one, other in itertools.combinations(found, 2):
        assert not found[one] & found[other], (one, other)
    assert protocols_of(task, "validation") == found["eval"]
    assert protocols_of(ProtocolTask(pool="all"), "train") == found["train"] | found["rl"]
    with pytest.raises(ValueError, match="there are train, eval"):
        task.examples("dev")


def test_documents_hold_texts_and_drills():
    documents = ProtocolTask(drills=100).documents("train")
    texts = [document for document in documents if isinstance(document, str)]
    assert len(documents) == len(texts) + 100 and all(text.startswith("Experiment Name: ") for text in texts)
    assert all(isinstance(text, str) for text in ProtocolTask(drills=0).documents("train"))
    held_out = ProtocolTask().documents("eval")
    assert not {d for d in held_out if isinstance(d, str)} & set(texts)


def test_redrawn_items_and_subtasks_join():
    task = ProtocolTask(redraw=40, seed=5)
    first = task.examples("train")
    assert len(first) == 40 and [e.id for e in first] == [
        e.id for e in ProtocolTask(redraw=40, seed=5).examples("train")
    ]
    assert len(task.examples("eval")) == len(ProtocolTask().examples("eval"))
    more = ProtocolTask(subtasks=True).examples("train")
    plain = [example for example in more if not example.data["item"].key]
    assert len(plain) > 100 and task.target(plain[0]) and len(task.messages(plain[0])) == 2


def test_options_that_do_not_fit_are_refused(tmp_path):
    for options, expected in (
        ({"pool": "rll"}, "did you mean 'rl'"),
        ({"redraw": -1}, "must be at least 0"),
        ({"train": "rows.jsonl", "redraw": 5}, "of the bundled corpus, not of a file"),
    ):
        with pytest.raises(InputError, match=expected):
            ProtocolTask(**options)


def test_drills_of_a_file_are_sketched(tmp_path):
    (tmp_path / "docs.jsonl").write_text(
        "".join(json.dumps({"exp_name": f"P{n}", "procedures": "1. Mix 5 ml of buffer well."}) + "\n" for n in range(4))
    )
    task = ProtocolTask(train=str(tmp_path / "docs.jsonl"), drills=3)
    drills = [document for document in task.documents("train") if not isinstance(document, str)]
    assert len(drills) == 3 and '"action": "mix"' in drills[0][1]


def test_the_data_card_has_the_figures_of_the_shipped_files(repo, tokenizer):
    from thoth_jax.data.describe import stats, stats_table

    rows = schema.read_rows(bundled.path("items.jsonl")).rows
    card = (repo / "docs" / "data_card.md").read_text()
    assert stats_table(stats(rows, schema.read_items(bundled.path("items.jsonl")).items, tokenizer)) in card
    numbers = int(bundled.path("checked_numbers.txt").read_text().split()[0])
    assert f"{numbers:,} numbers" in card and f"{len(tokenizer):,} pieces" in card
