"""The consistency gate's measure: how much of each key step its orc step says, over a whole batch at once."""

import functools
import itertools
import pathlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import snowballstemmer

from thoth_jax.protocol.grammar import Sketch
from thoth_jax.rewards import encoding

# Hyphens, dashes and minus signs that NFKC leaves apart.
_DASHES = re.compile("[‐‑‒–—―−]")
# A superscript number after a digit is a power (NFKC alone would make 106 of 10⁶); after a letter it is a charge.
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
# A word: letters and digits, with a decimal point, a group comma or a power between digits.
_WORD = re.compile(r"[^\W_]+(?:(?<=\d)[.,^]-?\d[^\W_]*)*|\n")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:\^-?\d+)?|\n")

_STOP_WORDS = frozenset((pathlib.Path(__file__).parent / "stop_words.txt").read_text(encoding="utf-8").split())
_LONGEST_STEMMED = 40  # longer words are no English, nor are words with digits
_LARGEST_TABLE = 1 << 19


def canonical(text: str) -> str:
    """The form in which texts are compared: NFKC, dashes folded, powers kept, white space collapsed, lower case.

    >>> canonical("  10⁶ cells/ml,  3–5 min in Ca²⁺ at 37 ℃ ")
    '10^6 cells/ml, 3-5 min in ca2+ at 37 °c'
    """
    return " ".join(_fold(text).split())


def canonical_all(texts: Sequence[str]) -> list[str]:
    """`canonical` of each text."""
    return [" ".join((text.lower() if text.isascii() else _fold(text)).split()) for text in texts]


# Normalisation sorts runs of combining marks in quadratic time, so a long text goes in pieces, cut before ASCII (which
# joins nothing to its left) where there is any.
_PIECE = re.compile(r".{1,256}(?![^\x00-\x7f])|.{1,256}", re.DOTALL)


def _fold(text: str) -> str:
    if not text.isascii():
        pieces = _PIECE.findall(_SUPERSCRIPT.sub(_power, text))
        text = _DASHES.sub("-", "".join([unicodedata.normalize("NFKC", piece) for piece in pieces]))
    return text.lower()


def _power(match: re.Match) -> str:
    start = match.start()
    return "^" + match.group() if start and match.string[start - 1].isdecimal() else match.group()


@functools.cache
def _stemmer():
    return snowballstemmer.stemmer("english")


class _StemTable(dict):
    """Word -> number of its stem, -1 for a stop word. The one thing that outlives a call; bounded."""

    def __init__(self):
        super().__init__({"\n": -2})
        self.numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        if word in _STOP_WORDS:
            number = -1
        else:
            stem = _stemmer().stemWord(word) if word.isalpha() and len(word) <= _LONGEST_STEMMED else word
            number = self.numbers.setdefault(stem, len(self.numbers))
        self[word] = number
        return number


_stems = _StemTable()


class _NumberTable(dict):
    """Text -> a number of its own."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


def token_coverage(sketches: Sequence[Sketch]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct stems of every key step, and how many of them its orc step has; stop words count nothing.

    Args:
      sketches: [B].

    Returns:
      found, total: int64 [B], summed over the steps.
    """
    global _stems
    if len(_stems) > _LARGEST_TABLE:
        _stems = _StemTable()
    key, orc = _step_texts(sketches)
    key_step, key_stem = _numbers(key, _WORD, _stems)
    orc_step, orc_stem = _numbers(orc, _WORD, _stems)
    stride = len(_stems.numbers) + 1
    wanted = encoding.distinct((key_step * stride + key_stem)[key_stem >= 0])
    said = encoding.distinct((orc_step * stride + orc_stem)[orc_stem >= 0])
    hit = _member(wanted, said)
    row = np.repeat(np.arange(len(sketches)), [len(sketch.steps) for sketch in sketches])[wanted // stride]
    return np.bincount(row[hit], minlength=len(sketches)), np.bincount(row, minlength=len(sketches))


def missing_numbers(sketches: Sequence[Sketch]) -> np.ndarray:
    """The first key step (from 1) whose numbers are not all in its orc step; 0 where there is none. int64 [B]."""
    key, orc = _step_texts(sketches)
    table = _NumberTable({"\n": -2})
    key_step, key_number = _numbers(key, _NUMBER, table)
    orc_step, orc_number = _numbers(orc, _NUMBER, table)
    stride = len(table) + 1
    lost = ~_member(key_step * stride + key_number, encoding.distinct(orc_step * stride + orc_number))
    count = np.array([len(sketch.steps) for sketch in sketches], np.int64)
    row = np.repeat(np.arange(len(sketches)), count)
    position = np.arange(row.shape[0]) - (np.cumsum(count) - count)[row]
    first = np.zeros(len(sketches), np.int64)
    steps = key_step[lost][::-1]  # so that the lowest step is written last
    first[row[steps]] = position[steps] + 1
    return first


def item_coverage(sketches: Sequence[Sketch]) -> tuple[np.ndarray, np.ndarray]:
    """The literal reading: distinct strings of each key step, and how many are part of its orc step; as above."""
    found, total = np.zeros(len(sketches), np.int64), np.zeros(len(sketches), np.int64)
    for row, sketch in enumerate(sketches):
        for step, sentence in itertools.zip_longest(sketch.steps, sketch.orc[: len(sketch.steps)], fillvalue=""):
            items = set(canonical_all([step.action, *step.objects, *step.parameters])) - {""}
            total[row] += len(items)
            found[row] += _parts(items, canonical(sentence))
    return found, total


# Plain substring searches may cost items x text characters up to here; more are found by an automaton.
_PLAIN_SEARCH = 1 << 22


def _parts(items: set[str], text: str) -> int:
    """How many of the items are substrings of the text, in time linear in both."""
    if len(items) * len(text) <= _PLAIN_SEARCH:
        return sum(item in text for item in items)
    # Aho-Corasick: a trie with failure links; an item is found if any node at or below it in the link tree is visited.
    edges: list[dict[str, int]] = [{}]
    ends = []
    for item in items:
        node = 0
        for letter in item:
            following = edges[node].get(letter)
            if following is None:
                following = edges[node][letter] = len(edges)
                edges.append({})
            node = following
        ends.append(node)
    link = [0] * len(edges)
    order = list(edges[0].values())
    for node in order:
        for letter, child in edges[node].items():
            link[child] = _follow(edges, link, link[node], letter)
            order.append(child)
    visited = [False] * len(edges)
    node = 0
    for letter in text:
        node = _follow(edges, link, node, letter)
        visited[node] = True
    for node in reversed(order):
        visited[link[node]] |= visited[node]
    return sum(visited[node] for node in ends)


def _follow(edges, link, node, letter) -> int:
    while node and letter not in edges[node]:
        node = link[node]
    return edges[node].get(letter, 0)


def _step_texts(sketches: Sequence[Sketch]) -> tuple[list[str], list[str]]:
    """Each step's key strings as one text, and its orc sentence ("" where there is none); neither has a line feed."""
    key = ["\t".join((action, *objects, *parameters)) for s in sketches for action, objects, parameters in s.steps]
    if "\n" in "".join(key):
        key = [text.replace("\n", " ") for text in key]
    orc: list[str] = []
    for sketch in sketches:
        steps, sentences = len(sketch.steps), sketch.orc
        orc.extend(sentences if len(sentences) == steps else [*sentences, *[""] * steps][:steps])
    return key, orc


def _numbers(texts: list[str], pattern: re.Pattern, table: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(text number, table number) of every match in every text."""
    found = pattern.findall("\n".join([text.lower() if text.isascii() else _fold(text) for text in texts]))
    numbers = np.fromiter(map(table.__getitem__, found), np.int64, len(found))
    is_break = numbers == -2
    owner = np.cumsum(is_break)
    return owner[~is_break], numbers[~is_break]


def _member(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    if not ordered.shape[0]:
        return np.zeros(values.shape, bool)
    return ordered[np.minimum(np.searchsorted(ordered, values), ordered.shape[0] - 1)] == values


def mean_words(sentences: Sequence[str]) -> float:
    """Lbar of SCORE: white-space words a step; 0 without steps."""
    return len(" ".join(sentences).split()) / len(sentences) if sentences else 0.0
