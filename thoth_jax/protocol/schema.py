"""Rows of data files: protocol items, pretraining documents, metadata records. Every error names file, line and field.

Files are JSON arrays, JSON Lines, or Parquet (through the `datasets` package). Items come as SciRecipe-Eval rows
(question, key, orc, action, ...), SFT rows (conversations, system), RL rows (system, query, response) or rows of the
released training table (exp_goal, think, key, orc, note).
"""

import codecs
import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from etils import epath

from thoth_jax.errors import InputError
from thoth_jax.protocol.grammar import Step, block_text, join_blocks

__all__ = [
    "Items",
    "Protocol",
    "ProtocolItem",
    "Row",
    "Rows",
    "Step",
    "item_of",
    "read_documents",
    "read_items",
    "read_rows",
    "row_id",
]


class Row(NamedTuple):
    """A JSON object of a file. `line` counts from 1; `index` is the row's number from 0, bad rows included."""

    line: int
    data: dict[str, Any]
    index: int


class Rows(NamedTuple):
    """Rows read, and one message for each bad row that was skipped."""

    rows: list[Row]
    bad: list[str]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A metadata record of the paper's corpus; a field that the source lacks is ""."""

    exp_name: str
    abstract: str = ""
    materials: str = ""
    equipments: str = ""
    procedures: str = ""
    notes: str = ""

    def document(self) -> str:
        """The pretraining text: one labelled part after the other, "None" for a missing one."""
        parts = (
            ("Experiment Name", self.exp_name),
            ("Background", self.abstract),
            ("Materials & Reagents", self.materials),
            ("Equipments", self.equipments),
            ("Procedures", self.procedures),
            ("Notes", self.notes),
        )
        return "\n".join(f"{label}: {text or 'None'}" for label, text in parts)


@dataclasses.dataclass(frozen=True)
class ProtocolItem:
    """A question with its gold protocol.

    id:       of the row, or its number from 0 in the file.
    question: the user's question; with `verbatim` the full user turn as the file gives it.
    system:   the file's system turn, or "".
    answer:   the full gold text with its four blocks; "" if the row has no think or no note. A row whose answer is no
              protocol (a plain question-answer pair) has its text here, and empty key and orc.
    key, orc: the text of those blocks, without tags.
    actions:  allowed actions in the order to show them; None if the row lists none.
    where:    "file:line", for messages.
    protocol: name of the protocol that the item is of, or "" where the row does not say.
    """

    id: str
    question: str
    system: str = ""
    answer: str = ""
    key: str = ""
    orc: str = ""
    actions: tuple[str, ...] | None = None
    type: str = "unknown"
    level: str = "unknown"
    verbatim: bool = False
    where: str = ""
    protocol: str = ""


class Items(NamedTuple):
    """Items read, and one message for each bad row that was skipped."""

    items: list[ProtocolItem]
    bad: list[str]


def read_rows(path, skip_bad: bool = False) -> Rows:
    """Read the JSON objects of a file: an array, one object a line (split on LF only), or a Parquet table.

    Args:
      path: local or remote (etils.epath). A Parquet row's "line" is its number from 1.
      skip_bad: list malformed rows in `bad` instead of raising. What follows a syntax error in an array cannot be
        found again; the message says so.

    Raises:
      InputError: no such file, not UTF-8, empty, or a malformed row.
    """
    path = epath.Path(path)
    if not path.exists() or path.is_dir():
        raise InputError(f"{path}: {'it is a directory, expected a file' if path.is_dir() else 'no such file'}")
    bad: list[str] = []

    def refuse(message: str) -> None:
        if not skip_bad:
            raise InputError(message)
        bad.append(message)

    if path.suffix == ".parquet":
        rows = _read_parquet(path)
    else:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        if not raw.strip():
            raise InputError(f"{path}: the file is empty; expected JSON Lines or a JSON array")
        if raw.lstrip()[:1] == b"[":
            rows = _read_array(str(path), _decoded(raw, path), refuse)
        else:
            rows = _read_lines(str(path), raw, refuse)
    if not rows and not bad:
        raise InputError(f"{path}: the file has no rows")
    return Rows(rows, bad)


def read_items(path, skip_bad: bool = False) -> Items:
    """Read protocol items (see the module's head for the row formats).

    Raises:
      InputError: as `read_rows`; a row of none of the formats; a field that is missing or of the wrong type.
    """
    return Items(*_convert(path, skip_bad, item_of))


def read_documents(path, skip_bad: bool = False) -> tuple[list[str], list[str]]:
    """Read pretraining documents: rows {"text"}, or metadata records in either layout, as their documents.

    Returns:
      Documents, and one message for each bad row that was skipped.

    Raises:
      InputError: as `read_rows`; a field that is missing or of the wrong type.
    """
    return _convert(path, skip_bad, _document)


def protocol_of(data: Mapping[str, Any], where: str) -> Protocol:
    """The record of a metadata row: flat (exp_name, ...) or with a hierarchical_protocol (title, abstract, input, ...).

    Raises:
      InputError: a field that is missing or of the wrong type.
    """
    if "hierarchical_protocol" not in data:
        fields = [field.name for field in dataclasses.fields(Protocol)]
        texts = {name: _optional_text(data, name, where) for name in fields[1:]}
        return Protocol(_text(data, "exp_name", where), **texts)
    tree = data["hierarchical_protocol"]
    if not isinstance(tree, dict) or not tree:
        raise InputError(f"{where}: field 'hierarchical_protocol' must be an object of numbered parts")
    lines = []
    for number, node in tree.items():
        title = node.get("title") if isinstance(node, dict) else node
        if not isinstance(title, str):
            raise InputError(f"{where}: field 'hierarchical_protocol.{number}' must be a text or have a 'title'")
        lines.append(f"{number} {title}")
    return Protocol(
        exp_name=_text(data, "title", where),
        abstract=_optional_text(data, "abstract", where),
        materials=_optional_text(data, "input", where),
        procedures="\n".join(lines),
    )


def _convert(path, skip_bad: bool, convert: Callable[[Row, str], Any]) -> tuple[list, list[str]]:
    rows, bad = read_rows(path, skip_bad)
    found = []
    for row in rows:
        try:
            found.append(convert(row, f"{path}:{row.line}"))
        except InputError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
    return found, bad


def _document(row: Row, where: str) -> str:
    if "exp_name" in row.data or "hierarchical_protocol" in row.data:
        return protocol_of(row.data, where).document()
    return _text(row.data, "text", where)


def row_id(row: Row, where: str) -> str:
    """The id of a row, its number from 0 where it has none.

    Raises:
      InputError: it is neither a text nor a whole number.
    """
    identity = row.data.get("id", row.index)
    if not isinstance(identity, (str, int)) or isinstance(identity, bool):
        raise InputError(f"{where}: field 'id' must be a text or a whole number")
    return str(identity)


def item_of(row: Row, where: str) -> ProtocolItem:
    """The item of a row, in any of the formats; `where` goes into messages and into the item.

    Raises:
      InputError: a row of none of the formats; a field that is missing or of the wrong type.
    """
    data = row.data
    common = {"id": row_id(row, where), "where": where, "protocol": _optional_text(data, "protocol", where)}
    for name in ("type", "level"):
        value = data.get(name)
        if value is not None and not isinstance(value, (str, int)):
            raise InputError(f"{where}: field {name!r} must be a text or a whole number")
        common[name] = "unknown" if value in (None, "") else str(value)
    if "conversations" in data:
        question, answer = _turns(data["conversations"], where)
        return _full_item(question, answer, data, where, common)
    if "query" in data or "response" in data:
        return _full_item(_text(data, "query", where), _text(data, "response", where), data, where, common)
    if "question" not in data and "exp_goal" not in data:
        known = "conversations (sft), query and response (rl), question (evaluation) or exp_goal (training table)"
        raise InputError(f"{where}: no field 'question'; an item row has {known}")
    question = _text(data, "question" if "question" in data else "exp_goal", where)
    key, orc = _body(data, "key", where), _body(data, "orc", where)
    think, note = (_body(data, name, where) if data.get(name) else "" for name in ("think", "note"))
    answer = join_blocks(think, key, orc, note) if think and note else ""
    system = _optional_text(data, "system", where)
    return ProtocolItem(
        question=question, system=system, answer=answer, key=key, orc=orc, actions=_actions(data, where), **common
    )


def _full_item(question: str, answer: str, data: Mapping[str, Any], where: str, common: dict) -> ProtocolItem:
    return ProtocolItem(
        question=question,
        system=_optional_text(data, "system", where),
        answer=answer,
        key=block_text(answer, "key") or "",
        orc=block_text(answer, "orc") or "",
        verbatim=True,
        **common,
    )


_HUMAN, _MODEL = ("human", "user"), ("gpt", "assistant")


def _turns(turns: Any, where: str) -> tuple[str, str]:
    """The first user turn and the answer that follows it."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise InputError(f"{where}: field 'conversations' must be a list of turns {{from, value}}")
    texts = {}
    for number, turn in enumerate(turns):
        role = turn.get("from", turn.get("role"))
        if role not in _HUMAN + _MODEL:
            raise InputError(f"{where}: field 'conversations[{number}].from' must be 'human' or 'gpt'")
        text = turn.get("value", turn.get("content"))
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{where}: field 'conversations[{number}].value' must be a text that is not blank")
        texts.setdefault("question" if role in _HUMAN else "answer", text)
    for name, role in (("question", "human"), ("answer", "gpt")):
        if name not in texts:
            raise InputError(f"{where}: field 'conversations' has no turn from {role!r}")
    return texts["question"], texts["answer"]


def _actions(data: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    """`action_new` if the row has it (already in the order to show), else `action`, shuffled.

    `action` stands in the order of the gold steps, which a prompt must not give away. The shuffle is that of the
    published evaluator: a fresh generator with seed 42 for each item.
    """
    name = "action_new" if data.get("action_new") is not None else "action"
    actions = data.get(name)
    if actions is None:
        return None
    if not isinstance(actions, list) or not all(isinstance(action, str) and action.strip() for action in actions):
        raise InputError(f"{where}: field {name!r} must be a list of texts that are not blank")
    actions = list(actions)
    if name == "action":
        random.Random(42).shuffle(actions)
    return tuple(actions) or None


def _body(data: Mapping[str, Any], name: str, where: str) -> str:
    text = _text(data, name, where)
    inner = block_text(text, name)
    return text.strip() if inner is None else inner


def _text(data: Mapping[str, Any], name: str, where: str) -> str:
    if name not in data:
        raise InputError(f"{where}: no field {name!r}")
    if not isinstance(data[name], str) or not data[name].strip():
        raise InputError(f"{where}: field {name!r} must be a text that is not blank")
    return data[name]


def _optional_text(data: Mapping[str, Any], name: str, where: str) -> str:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: field {name!r} must be a text")
    return value or ""


def _decoded(raw: bytes, path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8 text") from None


def _loads_error(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep or a number too long"


def _read_lines(path: str, raw: bytes, refuse: Callable[[str], None]) -> list[Row]:
    rows, index = [], 0
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            refuse(f"{path}:{number}: not UTF-8 text")
        except (ValueError, RecursionError) as error:
            refuse(f"{path}:{number}: malformed JSON: {_loads_error(error)}")
        else:
            if isinstance(data, dict):
                rows.append(Row(number, data, index))
            else:
                refuse(f"{path}:{number}: a row must be a JSON object")
        index += 1
    return rows


_SPACE = " \t\r\n"


def _read_array(path: str, text: str, refuse: Callable[[str], None]) -> list[Row]:
    """Element by element, so that each row knows its line."""
    decoder = json.JSONDecoder()
    rows, index, line, counted = [], 0, 1, 0

    def skip(position: int) -> int:
        while position < len(text) and text[position] in _SPACE:
            position += 1
        return position

    position = skip(text.index("[") + 1)
    if text[position : position + 1] == "]":
        return rows
    while True:
        line += text.count("\n", counted, position)
        counted = position
        try:
            data, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at = line + text.count("\n", counted, error.pos) if isinstance(error, json.JSONDecodeError) else line
            refuse(f"{path}:{at}: malformed JSON in row {index}: {_loads_error(error)}; the rows after it are lost")
            return rows
        if isinstance(data, dict):
            rows.append(Row(line, data, index))
        else:
            refuse(f"{path}:{line}: row {index} must be a JSON object")
        index += 1
        position = skip(position)
        separator = text[position : position + 1]
        if separator == "]" and not text[position + 1 :].strip():
            return rows
        if separator != ",":
            at = line + text.count("\n", counted, position)
            refuse(f"{path}:{at}: malformed JSON after row {index - 1}: expected ',' or a last ']'")
            return rows
        position = skip(position + 1)


def _read_parquet(path: epath.Path) -> list[Row]:
    import datasets  # heavy, and only this format needs it

    with tempfile.TemporaryDirectory() as cache:
        try:
            table = datasets.Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
        except Exception as error:
            raise InputError(f"{path}: not a readable Parquet table: {str(error).splitlines()[0]}") from error
        return [
            Row(index + 1, {name: value for name, value in row.items() if value is not None}, index)
            for index, row in enumerate(table)
        ]
