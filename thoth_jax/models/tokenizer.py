"""Hugging Face and SentencePiece tokenizers behind one interface.

Role markers (`<|...|>`) in text that comes from users or data are encoded as plain text, so that no content can open
or close a turn; only `encode_prompt` and friends write them. Content tags such as <think> stay what the tokenizer makes
of them.
"""

import abc
import codecs
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece
import tokenizers
from etils import epath

from thoth_jax.errors import InputError
from thoth_jax.models import chat

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
_SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_ROLE_MARKER = re.compile(r"<\|[^<>]*\|>")
_SPACE = "\u2581"  # how SentencePiece writes a space

# What the bundled tokenizer keeps whole: the four blocks' tags, the glue of a step line, the ends of lines.
PROTOCOL_SYMBOLS = (
    *(f"<{slash}{name}>" for name in ("think", "key", "orc", "note") for slash in ("", "/")),
    *('{"action": "', '", "objects": ["', '", "', '"], "parameters": ["'),
    *(f"{end}{line}" for end in ('"], "parameters": []}', '"]}') for line in ("", "\n")),
    *(f"Step {number}: " for number in range(1, 10)),
    *(".\n", "\n", "\n\n"),
)


class Tokenizer(abc.ABC):
    """Text <-> token ids.

    pad_id: fills batches. end_id: what an answer ends with (<|im_end|>). document_end_id: what a document ends with.
    stop_ids: all ids that end a completion, end_id first.
    """

    pad_id: int
    end_id: int
    document_end_id: int
    stop_ids: tuple[int, ...]

    def __init__(self, pieces: list[bytes], markers: Mapping[str, int], tags: Mapping[str, list[int]]):
        """
        Args:
          pieces: the bytes that each id stands for.
          markers: role markers and their ids, matched only where allowed.
          tags: texts with fixed ids, matched everywhere.
        """
        self._pieces, self._markers = pieces, dict(markers)
        self._fixed = {False: dict(tags), True: {**tags, **{text: [id] for text, id in markers.items()}}}
        self._pattern = {allowed: _any_of(fixed) for allowed, fixed in self._fixed.items()}

    @abc.abstractmethod
    def _encode_plain(self, text: str) -> list[int]:
        """Ids of text without markers and tags."""

    @abc.abstractmethod
    def save(self, path) -> None:
        """Write the files that `load_tokenizer` reads into the directory `path`."""

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Ids of `text`. Role markers in it are plain text, unless allow_special."""
        text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text: "?"
        ids, done = [], 0
        for match in self._pattern[allow_special].finditer(text):
            ids += self._encode_plain(text[done : match.start()])
            ids += self._fixed[allow_special][match.group()]
            done = match.end()
        return ids + self._encode_plain(text[done:])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of all ids, markers included; bytes that are no UTF-8 become U+FFFD. Ids beyond the vocabulary: ""."""
        return b"".join(map(self._piece, ids)).decode("utf-8", "replace")

    def decode_with_ends(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text of a completion and for each token the offset where it ends.

        Stop and pad ids add no text. A token that ends within a character ends at the last complete one before it;
        the last token always ends at len(text).
        """
        silent = {*self.stop_ids, self.pad_id}
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts, ends, length = [], [], 0
        for position, id in enumerate(ids):
            part = decoder.decode(b"" if id in silent else self._piece(id), final=position == len(ids) - 1)
            parts.append(part)
            length += len(part)
            ends.append(length)
        return "".join(parts), ends

    def encode_prompt(
        self, messages: Sequence[Mapping[str, Any]], enable_thinking: bool = True, tools: Sequence[Mapping] = ()
    ) -> list[int]:
        """A conversation and the opening of the assistant's turn; see `chat.render`.

        Raises:
          InputError: messages that cannot be rendered, or the tokenizer has no chat markers.
        """
        return self.encode_chat(messages, True, enable_thinking, tools)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation_prompt: bool = False,
        enable_thinking: bool = True,
        tools: Sequence[Mapping] = (),
        protect_special: bool = True,
    ) -> list[int]:
        """A whole conversation, answers included; see `encode_prompt`.

        Args:
          protect_special: role markers in contents are plain text; False: they are markers, as transformers has it.
        """
        for marker in (chat.IM_START, chat.IM_END):
            if marker not in self._markers:
                raise InputError(f"tokenizer: it has no {marker}, so it cannot encode a chat")
        pieces = chat.render(messages, generation_prompt, enable_thinking, tools)
        if not protect_special:
            return self.encode("".join(text for text, _ in pieces), allow_special=True)
        ids = []
        for text, is_marker in pieces:
            ids += [self._markers[text]] if is_marker else self.encode(text)
        return ids

    def encode_answer(self, text: str) -> list[int]:
        """What the assistant says after a prompt: the text and the end token."""
        return [*self.encode(text), self.end_id]

    def encode_document(self, text: str) -> list[int]:
        """A document for pretraining: the text and the end of a document."""
        return [*self.encode(text), self.document_end_id]

    def _piece(self, id: int) -> bytes:
        return self._pieces[id] if 0 <= id < len(self._pieces) else b""


def _any_of(texts: Iterable[str]) -> re.Pattern:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def load_tokenizer(path) -> Tokenizer:
    """A tokenizer from a directory with tokenizer.json or tokenizer.model, or from such a file itself.

    Raises:
      InputError: nothing there, broken, or of a kind that is not supported.
    """
    path = epath.Path(path)
    if path.is_dir():
        found = [name for name in TOKENIZER_FILES if (path / name).exists()]
        if not found:
            raise InputError(f"{path}: no tokenizer; expected {' or '.join(TOKENIZER_FILES)}")
        path = path / found[0]
    if not path.exists():
        raise InputError(f"{path}: no such tokenizer")
    if path.suffix == ".model":
        return SentencePieceTokenizer(path.read_bytes(), str(path))
    if path.suffix == ".json":
        return HfTokenizer(path)
    raise InputError(f"{path}: a tokenizer is a directory, a tokenizer.json or a SentencePiece .model file")


class HfTokenizer(Tokenizer):
    """A byte-level BPE of the `tokenizers` library, exactly as its tokenizer.json says."""

    def __init__(self, file: epath.Path):
        self._files = {"tokenizer.json": file.read_bytes()}
        for name in _SIDE_FILES:
            if (file.parent / name).exists():
                self._files[name] = (file.parent / name).read_bytes()
        try:
            spec = json.loads(self._files["tokenizer.json"])
            added = {token["content"]: token for token in spec["added_tokens"]}
            # Added tokens are matched here, not there, because there they match in any text.
            self._bpe = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": [], "post_processor": None}))
            byte_level = "ByteLevel" in json.dumps(spec["decoder"])
            ids = {**self._bpe.get_vocab(), **{text: int(token["id"]) for text, token in added.items()}}
        except Exception as error:  # `tokenizers` raises bare Exception on a broken file
            raise InputError(f"{file}: not a tokenizer.json ({error})") from None
        if not byte_level:
            raise InputError(f"{file}: only byte-level BPE tokenizers are supported")
        for token in added.values():
            if any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word")):
                raise InputError(
                    f"{file}: added token {token['content']!r}: lstrip, rstrip, single_word are not supported"
                )
        pieces = [b""] * (max(ids.values()) + 1)
        for text, id in ids.items():
            pieces[id] = text.encode() if text in added else _byte_level(text)
        role = {text for text, token in added.items() if token.get("special") or _ROLE_MARKER.fullmatch(text)}
        super().__init__(
            pieces,
            markers={text: ids[text] for text in role},
            tags={text: [ids[text]] for text in added if text not in role},
        )
        settings = self._settings("tokenizer_config.json", file)
        named = {kind: _token_text(settings.get(f"{kind}_token")) for kind in ("eos", "pad")}
        known = [text for text in (chat.IM_END, named["eos"], chat.END_OF_TEXT) if text in ids]
        if not known:
            raise InputError(f"{file}: no end token: neither {chat.IM_END} nor an eos_token in tokenizer_config.json")
        self.end_id = ids[known[0]]
        self.document_end_id = ids[known[-1]]
        self.pad_id = ids.get(named["pad"], self.document_end_id)
        self.stop_ids = tuple(dict.fromkeys([*(ids[text] for text in known), *_generation_ends(file)]))

    def _settings(self, name: str, file: epath.Path) -> dict:
        try:
            settings = json.loads(self._files.get(name, b"{}"))
        except ValueError as error:
            raise InputError(f"{file.parent / name}: not JSON ({error})") from None
        return settings if isinstance(settings, dict) else {}

    def _encode_plain(self, text: str) -> list[int]:
        return self._bpe.encode(text, add_special_tokens=False).ids if text else []

    def save(self, path) -> None:
        folder = epath.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            (folder / name).write_bytes(content)


def _token_text(value) -> str | None:
    return value.get("content") if isinstance(value, dict) else value


def _generation_ends(file: epath.Path) -> list[int]:
    source = file.parent / "generation_config.json"
    if not source.exists():
        return []
    try:
        ends = json.loads(source.read_text()).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise InputError(f"{source}: not a generation configuration ({error})") from None
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(end, int) for end in ends):
        raise InputError(f"{source}: eos_token_id: {ends} must be ids")
    return ends


def _byte_alphabet() -> dict[str, int]:
    # Byte-level BPE writes each byte as one visible character: printable Latin-1 as itself, the others from U+0100 on.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


def _byte_level(text: str) -> bytes:
    return bytes(_ALPHABET[char] for char in text) if all(char in _ALPHABET for char in text) else text.encode()


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with the chat markers, as `train_sentencepiece` makes it."""

    def __init__(self, model: bytes, where: str):
        self._model = model
        try:
            self._spm = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"{where}: not a SentencePiece model ({error})") from None
        spm, pieces, ids = self._spm, [], {}
        for id in range(spm.get_piece_size()):
            text = spm.id_to_piece(id)
            ids[text] = id
            if spm.is_byte(id):
                pieces.append(bytes([int(text[1:-1], 16)]))  # "<0x41>"
            else:
                pieces.append(text.replace(_SPACE, " ").encode())
        for marker in (chat.IM_START, chat.IM_END, chat.END_OF_TEXT):
            if marker not in ids:
                raise InputError(f"{where}: the model has no piece {marker}; train it with train_sentencepiece")
        markers = {text: id for text, id in ids.items() if _ROLE_MARKER.fullmatch(text)}
        # A marker in a text is cut in two, so that it cannot match; U+2581 in a text must not turn into a space.
        tags = {text: spm.encode(text[0]) + spm.encode(text[1:]) for text in markers}
        if all(f"<0x{byte:02X}>" in ids for byte in _SPACE.encode()):
            tags[_SPACE] = [ids[f"<0x{byte:02X}>"] for byte in _SPACE.encode()]
        super().__init__(pieces, markers, tags)
        self.end_id, self.document_end_id = ids[chat.IM_END], ids[chat.END_OF_TEXT]
        self.pad_id = spm.pad_id() if spm.pad_id() >= 0 else self.document_end_id
        self.stop_ids = (self.end_id, self.document_end_id)

    def _encode_plain(self, text: str) -> list[int]:
        return self._spm.encode(text)

    def save(self, path) -> None:
        folder = epath.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.model").write_bytes(self._model)


def train_sentencepiece(
    texts: Iterable[str],
    path,
    vocab_size: int,
    seed: int = 0,
    symbols: Sequence[str] = PROTOCOL_SYMBOLS,
    split_digits: bool = True,
) -> None:
    """Train a SentencePiece BPE and write it to the file `path`; the same texts give the same bytes.

    It changes no text: no normalisation, no added or removed spaces, and bytes for what it has no piece for.

    Args:
      vocab_size: pieces in all, with 256 bytes, special pieces and symbols.
      seed: picks the lines to train on where there are more than a million.
      symbols: texts that are always one token.
      split_digits: every digit is a token of its own; else frequent numbers are pieces like words.

    Raises:
      InputError: the texts do not fit the vocabulary size.
    """
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.split("\n") if line),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            split_digits=split_digits,
            split_by_unicode_script=False,  # it would cut µl and °C in two
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            # Written with U+2581 for a space, or they would never match.
            user_defined_symbols=[symbol.replace(" ", _SPACE) for symbol in symbols],
            control_symbols=[chat.IM_START, chat.IM_END],
            pad_id=0,
            unk_id=1,
            eos_id=2,
            bos_id=-1,
            pad_piece="<pad>",
            unk_piece="<unk>",
            eos_piece=chat.END_OF_TEXT,
            input_sentence_size=1_000_000,
            max_sentence_length=1 << 20,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise InputError(f"tokenizer: no vocabulary of {vocab_size} pieces from these texts ({error})") from None
    file = epath.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(model.getvalue())
