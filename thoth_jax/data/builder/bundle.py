"""The shipped files of a corpus, the same bytes each time they are built."""

import json
from collections.abc import Iterator, Sequence

from etils import epath

from thoth_jax.data import bundled
from thoth_jax.data.builder import metadata, quantities, splits
from thoth_jax.data.builder.corpus import Corpus, corpus_of, redrawn_items, shipped_items, subtask_rows
from thoth_jax.data.builder.items import Item
from thoth_jax.data.builder.source import read_sources
from thoth_jax.errors import InputError
from thoth_jax.models.tokenizer import load_tokenizer, train_sentencepiece
from thoth_jax.protocol import prompts

FILES = bundled.FILES
VOCAB_SIZE = 3072
_TOKENIZER_ITEMS = 4000
_TOKENIZER_SEED = 1


def build_bundle(source, out) -> Corpus:
    """Read and check the YAML files of the directory `source`, and write all of `FILES` into the directory `out`.

    Raises:
      InputError: the sources break a rule of the format, or hold a number that nobody would believe.
    """
    source, out = epath.Path(source), epath.Path(out)
    if not source.is_dir():
        raise InputError(f"{source}: no such directory of .yaml files")
    corpus = corpus_of(read_sources(source))
    out.mkdir(parents=True, exist_ok=True)
    (out / "checked_numbers.txt").write_text(quantities.report(corpus.protocols))
    train_tokenizer(corpus, out / "tokenizer.model")
    tokenizer = load_tokenizer(out / "tokenizer.model")
    items = shipped_items(corpus, lambda text: len(tokenizer.encode_answer(text)))
    _write(out / "protocols.jsonl", [protocol_row(corpus, protocol) for protocol in corpus.protocols])
    _write(out / "items.jsonl", [item_row(corpus, item) for item in items])
    _write(out / "subtasks.jsonl", subtask_rows(corpus))
    return corpus


def compared(out, with_shipped: bool) -> str:
    """What was written, one line a file, and whether it equals the shipped file."""
    lines = []
    for name in FILES:
        content = (epath.Path(out) / name).read_bytes()
        line = f"{epath.Path(out) / name}  {len(content):,} bytes"
        if with_shipped:
            shipped = bundled.path(name)
            same = shipped.exists() and shipped.read_bytes() == content
            line += "  equal to the shipped file" if same else "  differs from the shipped file"
        lines.append(line)
    return "\n".join(lines)


def protocol_row(corpus: Corpus, protocol) -> dict:
    """A metadata record with its subfield and split."""
    return {
        **metadata.record(protocol),
        "subfield": protocol.subfield,
        "split": corpus.split[protocol.name],
    }


def item_row(corpus: Corpus, item: Item) -> dict:
    """An item as it is shipped: a row of SciRecipe-Eval with think, note, subfield, protocol and split."""
    return {
        "id": item.id,
        "type": item.type,
        "level": item.level,
        "split": corpus.split[item.protocol],
        "subfield": item.subfield,
        "protocol": item.protocol,
        "named": item.named,
        "question": item.question,
        "think": item.think,
        "key": item.key,
        "orc": item.orc,
        "note": item.note,
        "action": list(item.action),
        "action_new": list(item.action_new),
    }


def train_tokenizer(corpus: Corpus, path) -> None:
    """Train the tokenizer on the texts of the training protocols and write it to the file `path`."""
    train_sentencepiece(tokenizer_texts(corpus), path, VOCAB_SIZE, split_digits=False)


def tokenizer_texts(corpus: Corpus) -> Iterator[str]:
    """What a run on the bundled corpus reads or writes, of training protocols only."""
    trained = (splits.SFT, splits.RL)
    for protocol in corpus.of(*trained):
        record = metadata.record(protocol)
        yield from record.values()
    yield prompts.SYSTEM_PROMPT
    for row in subtask_rows(corpus):
        yield row["system"]
        yield from (turn["value"] for turn in row["conversations"])
    drawn = redrawn_items(corpus, trained, _TOKENIZER_SEED, lambda text: 0)
    for _, item in zip(range(_TOKENIZER_ITEMS), drawn, strict=False):
        yield prompts.user_prompt(item.question, item.action_new)
        yield item.answer


def _write(path: epath.Path, rows: Sequence[dict]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows))
