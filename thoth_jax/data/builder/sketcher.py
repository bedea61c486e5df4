"""Natural-language step -> action, objects, parameters; by rules, without a model.

A step is taken to be an imperative sentence: perhaps an adverb, the verb, what it acts on, then how. Clauses are cut at
prepositions. The first noun phrase gives the objects (several where "and" or commas join them); quantities that stand
before it, adverbs and all that follows give the parameters.

>>> sketch_step("Gently mix 5 ml of cold buffer into the lysate for 10 min at 4 °C.")
Step(action='mix', objects=('cold buffer',), parameters=('5 ml', 'lysate', '10 min', '4 °c', 'gently'))
"""

import re
from collections.abc import Sequence

from thoth_jax.protocol.grammar import Step

_HEADER = re.compile(r"^\s*(?:Step\s+\d+\s*:|\d+\s*[.)])\s*", re.IGNORECASE)
_TOKEN = re.compile(r"\S+")
_ARTICLES = {"the", "a", "an", "each", "every", "all", "this", "these", "any", "its", "their", "some", "both"}
# A preposition or conjunction that opens a new phrase.
_OPENERS = set(
    "about above across after against along among around as at before below beneath beside between by during for from"
    " in inside into near of off on onto out over per through throughout to toward under underneath until up upon using"
    " via while with within without followed if so that containing".split()
)
_NAMES = re.compile(r",\s+(?:and\s+)?|\s+and\s+(?:the\s+)?")  # between the names of a list; not the comma of 20,000
# Openers that say nothing by themselves: left out of the parameter.
_DROPPED = set("at for in into on onto with using via by from of under to as through within over upon per".split())
# What an opener must keep for the phrase to mean the same.
_KEPT_TIME = {
    "before",
    "after",
    "until",
    "without",
    "between",
    "while",
    "during",
    "every",
    "followed",
    "if",
    "so",
    "that",
}
_PARTICLES = {"down", "off", "out", "up", "away", "over", "back"}
_ADVERB = re.compile(r"^(?:[a-z]{2,}ly|overnight|twice|once|again|\d+:\d+(?::\d+)*)$")
_NO_ADVERBS = {
    "apply",
    "supply",
    "multiply",
    "assembly",
    "early",
    "daily",
    "family",
    "supernatantly",
    "monopoly",
    "fly",
}
_UNIT = (
    r"(?:°|º)?(?:c|f)|µl|ul|ml|l|nl|dl|µg|ug|mg|g|kg|ng|pg|µm|um|mm|cm|m|nm|pm|fm|mol|mmol|µmol|nmol|pmol|s|sec|secs|"
    r"seconds?|min|mins|minutes?|h|hr|hrs|hours?|d|days?|weeks?|xg|rpm|v|kv|ma|w|hz|khz|u|iu|kda|bp|kb|%|x|×|times|cycles?|"
    r"volumes?|rcf|psi|od|units?"
)
_AMOUNT = re.compile(
    r"^(?:~|≈|about |approximately |approx\. )?[-–]?\d[\d.,/:×^⁰-⁹x–-]*\s*"
    rf"(?:(?:×|x)\s*g\b|(?:{_UNIT})(?:/(?:{_UNIT}|well|plate|tube))?(?![\w%°/-]))(?:\s+(?:w/v|v/v|final volume|each))?",
    re.IGNORECASE,
)
_TWO_WORD = {("filter", "sterilize"), ("snap", "freeze"), ("flash", "freeze"), ("heat", "shock"), ("air", "dry")}
_TWO_WORD |= {
    ("heat", "inactivate"),
    ("serially", "dilute"),
    ("freeze", "dry"),
    ("pulse", "spin"),
    ("vacuum", "filter"),
}


def sketch(text: str) -> list[Step]:
    """The steps of an orc block or of numbered sentences, one a line; blank lines count nothing."""
    return [sketch_step(line) for line in text.split("\n") if line.strip()]


def sketch_step(sentence: str) -> Step:
    """One imperative sentence as a step, in lower case. Never raises; a blank sentence gives blank fields."""
    words = _words(_HEADER.sub("", sentence))
    adverbs, words = _leading_adverbs(words)
    if not words:
        return Step(adverbs.pop(0) if adverbs else "", (), tuple(adverbs))
    action, words = _action(words)
    phrases = _phrases(words)
    objects, parameters = _head(phrases[0]) if phrases else ([], [])
    rest = phrases[1:]
    if not objects and rest:  # "add to the tube", "transfer 5 ml into": the next phrase is what it acts on
        objects, more = _head(rest.pop(0)[1:])
        parameters += more
    for phrase in rest:
        parameters += _parameters(phrase)
    parameters += adverbs
    return Step(action, tuple(objects), tuple(dict.fromkeys(text for text in parameters if text)))


def _words(sentence: str) -> list[str]:
    text = sentence.strip().rstrip(".").lower().replace("’", "'")
    return _TOKEN.findall(text)


def _is_adverb(word: str) -> bool:
    return bool(_ADVERB.match(word)) and word not in _NO_ADVERBS


def _leading_adverbs(words: list[str]) -> tuple[list[str], list[str]]:
    adverbs = []
    while len(words) > 1 and (_is_adverb(words[0].rstrip(",")) or words[0].rstrip(",") in ("then", "next", "first")):
        word = words[0].rstrip(",")
        if _is_adverb(word):
            adverbs.append(word)
        words = words[1:]
    return adverbs, words


def _action(words: list[str]) -> tuple[str, list[str]]:
    first = words[0].rstrip(",")
    if len(words) > 1 and (first, words[1]) in _TWO_WORD:
        return f"{first} {words[1]}", words[2:]
    if len(words) > 2 and words[1] in _PARTICLES and words[2] not in _ARTICLES | _OPENERS and words[1] != "up":
        return f"{first} {words[1]}", words[2:]
    if len(words) > 2 and words[1] in ("down", "off", "up", "out", "away") and words[2] in _ARTICLES:
        return f"{first} {words[1]}", words[2:]
    return first, words[1:]


def _phrases(words: Sequence[str]) -> list[list[str]]:
    """Cut at openers; the first phrase is what the verb acts on, the others begin with their opener."""
    phrases: list[list[str]] = [[]]
    for place, word in enumerate(words):
        bare = word.rstrip(",")
        before = phrases[-1]
        joins = bare == "of" and before and not _all_amount(before)  # "tips of the roots" is one name
        if bare in _OPENERS and not joins and not (bare == "x" and place):
            phrases.append([bare])
        elif bare == "every" and place and _AMOUNT.match(" ".join(words[place + 1 : place + 3])):
            phrases.append([bare])
        elif bare == "and" and _new_clause(words[place + 1 :]) and place:
            phrases.append(["and"])
        else:
            before.append(word)
    return [phrase for phrase in phrases if phrase] if phrases[0] else phrases[1:] and [[], *phrases[1:]]


def _all_amount(words: Sequence[str]) -> bool:
    amount, rest = _split_amount(" ".join(word for word in words if word not in _ARTICLES and word not in _DROPPED))
    return bool(amount) and not rest


def _new_clause(words: Sequence[str]) -> bool:
    """Whether "and" opens another value ("and 4 °c", "and at") and does not join two names."""
    if not words:
        return False
    return words[0] in _OPENERS or bool(_AMOUNT.match(" ".join(words[:3]))) or _is_adverb(words[0])


def _split_amount(text: str) -> tuple[str, str]:
    """("5 ml", "cold buffer") of "5 ml cold buffer"; ("", text) where no amount stands in front, or a strength does."""
    match = _AMOUNT.match(text)
    if not match:
        return "", text
    amount, rest = match.group().strip(), text[match.end() :].strip()
    strength = re.search(r"(?:%|[\d]x|×|\b[mµun]?m)$", amount)
    return ("", text) if strength and rest else (amount, rest)


def _head(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The objects of a noun phrase, and the amounts and adverbs that stand in it."""
    parameters = [word for word in words if _is_adverb(word.rstrip(","))]
    text = " ".join(word for word in words if not _is_adverb(word.rstrip(",")))
    objects = []
    for part in _NAMES.split(text):
        name = _no_article(part)
        amount, name = _split_amount(name)
        if amount:
            parameters.append(amount)
        name = _no_article(re.sub(r"^of\s+", "", name))
        if name:
            objects.append(name)
    return objects, parameters


def _no_article(text: str) -> str:
    words = text.strip(" ,").split()
    while words and words[0] in _ARTICLES:
        words = words[1:]
    return " ".join(words)


def _parameters(phrase: Sequence[str]) -> list[str]:
    opener, words = phrase[0], list(phrase[1:])
    adverbs = [word for word in words if _is_adverb(word.rstrip(","))]
    text = _no_article(" ".join(word for word in words if not _is_adverb(word.rstrip(","))))
    if not text:
        return adverbs if opener in _DROPPED | {"and"} else [opener, *adverbs]
    found = []
    for part in _NAMES.split(text):
        amount, rest = _split_amount(_no_article(part))
        if rest.startswith("of "):
            found += [amount, _no_article(rest[3:])]
        else:  # "50 ml tube" is one thing
            found.append(f"{amount} {rest}".strip())
    if opener in _KEPT_TIME and found:
        found[0] = f"{opener} {found[0]}"
    return [*found, *adverbs]
