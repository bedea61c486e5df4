"""The consistency gate's measure: how much of each key step its orc step says, over a whole batch at once."""

import functools
import itertools
import pathlib
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import snowballstemmer

from thoth_jax.protocol.columns import Numbering, places
from thoth_jax.protocol.grammar import Sketch, Step
from thoth_jax.protocol.scan import Answers
from thoth_jax.rewards import encoding

# Hyphens, dashes and minus signs that NFKC leaves apart.
_DASHES = re.compile("[‐‑‒–—―−]")
# A superscript number after a digit is a power (NFKC alone would make 106 of 10⁶); after a letter it is a charge.
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
# A word: letters and digits, with a decimal point, a group comma or a power between digits.
_WORD = re.compile(r"[^\W_]+(?:(?<=\d)[.,^]-?\d[^\W_]*)*")
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
    """White-space word -> number of its stem. The one thing that outlives a call; bounded.

    -1: nothing that counts (stop words, punctuation). -2 - k: several stems, `several[k]`, as "NaOH/SDS" has.
    """

    def __init__(self):
        super().__init__()
        self.numbers: dict[str, int] = {}
        self.several: list[frozenset[int]] = []

    def __missing__(self, word: str) -> int:
        folded = word.lower() if word.isascii() else _fold(word)
        stems = {self._stem(part) for part in _WORD.findall(folded)} - {-1}
        if len(stems) < 2:
            number = stems.pop() if stems else -1
        else:
            self.several.append(frozenset(stems))
            number = -1 - len(self.several)
        self[word] = number
        return number

    def _stem(self, word: str) -> int:
        if word in _STOP_WORDS:
            return -1
        stem = _stemmer().stemWord(word) if word.isalpha() and len(word) <= _LONGEST_STEMMED else word
        return self.numbers.setdefault(stem, len(self.numbers))

    def pairs(self, owner: np.ndarray, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(owner, stem) of every stem that counts in some words, each of which has an owner."""
        stem = np.fromiter(map(self.__getitem__, words), np.int64, len(words))
        extra = [(at, part) for at in np.nonzero(stem < -1)[0].tolist() for part in self.several[-2 - stem[at]]]
        single = stem >= 0
        owners, stems = owner[single], stem[single]
        if extra:
            at, part = np.array(extra, np.int64).T
            owners, stems = np.concatenate([owners, owner[at]]), np.concatenate([stems, part])
        return owners, stems


_stems = _StemTable()


def unsaid(step: Step, sentence: str) -> list[str]:
    """The white-space words of a key step that the token measure does not find in its orc sentence."""

    def stems(word: str) -> frozenset[int]:
        number = _stems[word]
        return frozenset((number,) if number >= 0 else () if number == -1 else _stems.several[-2 - number])

    said = frozenset().union(*map(stems, sentence.split()))
    words = " ".join((step.action, *step.objects, *step.parameters)).split()
    return [word for word in dict.fromkeys(words) if not stems(word) <= said]


class Words(NamedTuple):
    """What the token measure finds in B answers: int64 [B], summed over the steps."""

    found: np.ndarray  # distinct stems of key steps that the same orc step has
    total: np.ndarray  # distinct stems of key steps, stop words left out
    orc_words: np.ndarray  # white-space words of the orc steps


def words_of(answers: Answers) -> Words:
    """Count the words of B answers; every distinct word is folded and stemmed once."""
    global _stems
    if len(_stems) > _LARGEST_TABLE:
        _stems = _StemTable()
    columns = answers.columns
    parts = [text.split() for text in columns.texts]
    count = np.fromiter(map(len, parts), np.int64, len(parts))
    text, stem = _stems.pairs(np.repeat(np.arange(len(parts)), count), list(itertools.chain.from_iterable(parts)))
    order = np.argsort(text, kind="stable")
    start = np.searchsorted(text[order], np.arange(len(parts) + 1))
    steps = np.arange(columns.row.shape[0])
    owners = np.concatenate([steps, columns.object_step, columns.parameter_step])
    texts = np.concatenate([columns.action, columns.object, columns.parameter])
    step, wanted = encoding.expand(owners, texts, stem[order], start)
    orc_step, orc_stem = _stems.pairs(answers.orc_step, answers.words)
    stride = len(_stems.numbers) + 1
    wanted = encoding.distinct(step * stride + wanted)
    # A word beyond the last key step has owner -1, so a negative number that no step's word has.
    said = np.sort(orc_step * stride + orc_stem)
    row = columns.row[wanted // stride]
    rows = columns.count.shape[0]
    return Words(
        np.bincount(row[_member(wanted, said)], minlength=rows),
        np.bincount(row, minlength=rows),
        answers.orc_words,
    )


def missing_numbers(sketches: Sequence[Sketch]) -> np.ndarray:
    """The first key step (from 1) whose numbers are not all in its orc step; 0 where there is none. int64 [B]."""
    key, orc = _step_texts([sketch._replace(orc=_paired(sketch)) for sketch in sketches])
    table = Numbering({"\n": -2})
    (key_step, key_number, _), (orc_step, orc_number, _) = _matches((key, orc), _NUMBER, table)
    stride = len(table) + 1
    lost = ~_member(key_step * stride + key_number, encoding.distinct(orc_step * stride + orc_number))
    steps_of_row = np.array([len(sketch.steps) for sketch in sketches], np.int64)
    row, place = np.repeat(np.arange(len(sketches)), steps_of_row), places(steps_of_row)
    first = np.zeros(len(sketches), np.int64)
    steps = key_step[lost][::-1]  # so that the lowest step is written last
    first[row[steps]] = place[steps] + 1
    return first


def item_coverage(sketches: Sequence[Sketch]) -> tuple[np.ndarray, np.ndarray]:
    """The literal reading: distinct strings of each key step, and how many are part of its orc step; as above."""
    found, total = np.zeros(len(sketches), np.int64), np.zeros(len(sketches), np.int64)
    for row, sketch in enumerate(sketches):
        for step, sentence in zip(sketch.steps, _paired(sketch), strict=True):
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


def _paired(sketch: Sketch) -> tuple[str, ...]:
    """One orc sentence for each key step, "" where there is none."""
    steps = len(sketch.steps)
    return (*sketch.orc[:steps], *[""] * (steps - len(sketch.orc)))


def _step_texts(sketches: Sequence[Sketch]) -> tuple[list[str], list[str]]:
    """Each key step's strings as one text, and each orc sentence."""
    key = ["\t".join((action, *objects, *parameters)) for s in sketches for action, objects, parameters in s.steps]
    return key, [sentence for sketch in sketches for sentence in sketch.orc]


def _matches(columns, pattern: re.Pattern, table: dict[str, int]):
    """For each column of texts (text number, table number) of every match in every text, and each text's words.

    Texts are cut at white space and every distinct word is folded and searched once.
    """
    parts = [[text.split() for text in column] for column in columns]
    places = dict.fromkeys(itertools.chain.from_iterable(itertools.chain.from_iterable(parts)))
    folded = [word.lower() if word.isascii() else _fold(word) for word in places]
    places = dict(zip(places, range(len(folded)), strict=True))
    found = pattern.findall("\n".join(folded))
    numbers = np.fromiter(map(table.__getitem__, found), np.int64, len(found))
    is_break = numbers == -2
    kept = numbers[~is_break]
    start = np.nonzero(is_break)[0] - np.arange(max(len(folded) - 1, 0))
    start = np.concatenate([[0], start, [kept.shape[0]]]) if folded else np.zeros(1, np.int64)
    for column in parts:
        count = np.fromiter(map(len, column), np.int64, len(column))
        word = np.fromiter(map(places.__getitem__, itertools.chain.from_iterable(column)), np.int64, int(count.sum()))
        yield (*encoding.expand(np.repeat(np.arange(len(column)), count), word, kept, start), count)


def _member(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    if not ordered.shape[0]:
        return np.zeros(values.shape, bool)
    return ordered[np.minimum(np.searchsorted(ordered, values), ordered.shape[0] - 1)] == values
