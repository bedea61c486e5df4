"""Copy drills: well formed, learnt from their second half, and different each time."""

import numpy as np

from thoth_jax.data import bundled
from thoth_jax.data.builder import drills
from thoth_jax.data.builder.drills import sketched_drills
from thoth_jax.data.encoding import encode_documents
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.protocol.grammar import parse_key_block
from thoth_jax.rewards.score import score_batch


def test_drills_are_consistent_and_hardly_ever_the_same(corpus):
    made = drills(corpus.of("train"), 400, seed=0)
    assert made == drills(corpus.of("train"), 400, seed=0) != drills(corpus.of("train"), 400, seed=1)
    assert len(set(made)) > 395
    answers = []
    for given, wanted in made:
        text = given + wanted
        assert "<key>\n" in text and (wanted.endswith("</key>") or wanted.endswith("</orc>"))
        key = text[text.index("<key>") : text.index("</key>") + len("</key>")]
        assert 1 <= len(parse_key_block(key)) <= 4
        if "<orc>" in text:
            answers.append(f"<think>\nx\n</think>\n\n{text[text.index('<key>') :]}\n\n<note>\nx\n</note>")
    assert len(answers) > 100
    assert np.mean(score_batch(answers, answers).total == 2.5) > 0.99


def test_only_the_second_half_is_learnt():
    tokenizer = load_tokenizer(bundled.path("tokenizer.model"))
    given, wanted = "Spin the lysate.\n\n<key>\n", "Step 1: x\n</key>"
    (sample,) = encode_documents([(given, wanted)], tokenizer, 64)
    learnt = [int(token) for token, learn in zip(sample.tokens, sample.learn, strict=True) if learn]
    assert learnt == tokenizer.encode_document(wanted)
    assert tokenizer.decode(sample.tokens[: -len(learnt)].tolist()) == given
    (short,) = encode_documents([(given * 9, wanted)], tokenizer, 16)
    assert short.width == 16 and short.learn.sum() == len(learnt)
    (cut,) = encode_documents([(given, wanted * 9)], tokenizer, 16)
    assert cut.width == 16 and cut.learn.sum() == 16


def test_drills_from_any_numbered_text():
    documents = ["Procedures:\n1. Spin the lysate at 4 °C for 5 min. Then wait.\nStep 2: Add 5 ml of cold water.\n"]
    made = sketched_drills(documents, 20, seed=0)
    assert len(made) == 20 and sketched_drills(["no steps here"], 20, seed=0) == []
    for given, wanted in made:
        steps = parse_key_block(f"<key>\n{wanted}")
        assert {step.action for step in steps} <= {"spin", "add"} and len(steps) == given.count(".")
