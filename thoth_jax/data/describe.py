"""Items and data files as text for people, at most 100 columns wide."""

import collections
import textwrap
from collections.abc import Sequence

import numpy as np

from thoth_jax.errors import InputError
from thoth_jax.models.tokenizer import Tokenizer
from thoth_jax.protocol import prompts
from thoth_jax.protocol.grammar import block_text, parse_key_block
from thoth_jax.protocol.schema import ProtocolItem, Row

WIDTH = 100
_INDENT = 11


def pick(rows: Sequence[Row], *, id: str = "", type: str = "", split: str = "", number: int = 1) -> list[Row]:
    """The row with an id, or the first `number` rows of a type and a split.

    Raises:
      InputError: there is none.
    """
    chosen = [
        row
        for row in rows
        if (not id or str(row.data.get("id", row.index)) == id)
        and (not type or str(row.data.get("type", "unknown")) == type)
        and (not split or str(row.data.get("split", "")) == split)
    ]
    if not chosen:
        wanted = ", ".join(
            f"{name} {value!r}" for name, value in (("id", id), ("type", type), ("split", split)) if value
        )
        types = ", ".join(sorted({str(row.data.get("type", "unknown")) for row in rows}))
        raise InputError(f"no row with {wanted}; types: {types}")
    return chosen[:number]


def show(item: ProtocolItem, row: Row) -> str:
    """One item, pretty-printed."""
    about = [f"type {item.type}", f"level {item.level}"]
    about += [str(row.data[name]) for name in ("split", "subfield") if row.data.get(name)]
    lines = [_field("item", item.id), _field("", ", ".join(about))]
    if row.data.get("protocol"):
        lines.append(_field("protocol", str(row.data["protocol"])))
    lines.append(_field("question", item.question))
    if item.actions:
        lines.append(_field("actions", ", ".join(item.actions)))
    if not item.key:
        return "\n".join([*lines, _field("answer", item.answer)])
    think, note = (block_text(item.answer, name) if item.answer else "" for name in ("think", "note"))
    if think:
        lines.append(_field("think", think))
    sentences = [line.partition(":")[2].strip() for line in item.orc.split("\n") if line.strip()]
    for number, step in enumerate(parse_key_block(item.key), 1):
        parts = [step.action, ", ".join(step.objects), "; ".join(step.parameters)]
        lines.append(_field(f"step {number}", " | ".join(part for part in parts if part)))
        if number <= len(sentences):
            lines.append(_field("", sentences[number - 1]))
    if note:
        lines.append(_field("note", note))
    return "\n".join(lines)


def _field(name: str, text: str) -> str:
    parts = []
    for line in text.split("\n"):
        parts += textwrap.wrap(line, WIDTH - _INDENT, break_on_hyphens=False) or [""]
    return textwrap.indent("\n".join(parts), " " * _INDENT).replace(" " * _INDENT, name.ljust(_INDENT), 1)


def stats(rows: Sequence[Row], items: Sequence[ProtocolItem], tokenizer: Tokenizer) -> dict:
    """Counts by type and split, steps, and lengths in tokens, overall and by type; counts by subfield and split."""
    by_type, by_subfield = collections.defaultdict(list), collections.defaultdict(list)
    for row, item in zip(rows, items, strict=True):
        prompt = item.question if item.verbatim else prompts.user_prompt(item.question, item.actions)
        entry = {
            "split": str(row.data.get("split", "all")),
            "steps": len([line for line in item.key.split("\n") if line.strip()]),
            "prompt": len(tokenizer.encode(prompt)),
            "answer": len(tokenizer.encode_answer(item.answer or f"{item.key}\n{item.orc}")),
        }
        by_type[item.type].append(entry)
        by_subfield[str(row.data.get("subfield", ""))].append(entry)
    everything = [entry for entries in by_type.values() for entry in entries]
    found = {
        "items": len(everything),
        "splits": _counts(everything, "split"),
        "steps": _counts(everything, "steps"),
        "by_type": {name: _summary(entries) for name, entries in sorted(by_type.items())},
        "overall": _summary(everything),
    }
    if set(by_subfield) != {""}:
        found["by_subfield"] = {
            name: {"items": len(entries), "splits": _counts(entries, "split")}
            for name, entries in sorted(by_subfield.items())
        }
    return found


def _counts(entries: Sequence[dict], name: str) -> dict:
    return dict(sorted(collections.Counter(entry[name] for entry in entries).items()))


def _summary(entries: Sequence[dict]) -> dict:
    summary = {"items": len(entries), "splits": _counts(entries, "split")}
    summary["steps"] = round(float(np.mean([entry["steps"] for entry in entries])), 2)
    for name in ("prompt", "answer"):
        lengths = np.array([entry[name] for entry in entries])
        summary[name] = {
            "mean": round(float(lengths.mean()), 1),
            "p95": int(np.percentile(lengths, 95)),
            "max": int(lengths.max()),
        }
    return summary


def stats_table(found: dict) -> str:
    """`stats` as text."""
    splits = list(found["splits"])
    head = f"{'type':<20}{'items':>6}{'steps':>7}{'prompt tokens':>20}{'answer tokens':>20}"
    lines = [f"{head}\n{'':<33}{'mean  p95  max':>20}{'mean  p95  max':>20}"]
    for name, row in [*found["by_type"].items(), ("all", found["overall"])]:
        lengths = "".join(
            f"{row[part]['mean']:>10}{row[part]['p95']:>5}{row[part]['max']:>5}" for part in ("prompt", "answer")
        )
        lines.append(f"{name:<20}{row['items']:>6}{row['steps']:>7}{lengths}")
    lines.append("")
    lines.append(f"{'items by split':<36}{'all':>8}" + "".join(f"{split:>12}" for split in splits))
    tables = [*found["by_type"].items(), *found.get("by_subfield", {}).items(), ("all", found["overall"])]
    for name, row in tables:
        cells = "".join(f"{row['splits'].get(split, 0):>12}" for split in splits)
        lines.append(f"{name:<36}{row['items']:>8}{cells}")
    lines.append("")
    lines.append("steps of an answer: " + ", ".join(f"{steps}: {count}" for steps, count in found["steps"].items()))
    return "\n".join(lines)
