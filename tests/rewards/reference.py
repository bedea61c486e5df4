"""SCORE in plain Python, one pair at a time: what the kernels are compared with."""

import functools
import json
import math
import pathlib
import re
import unicodedata

import snowballstemmer

import thoth_jax.rewards

_STOP = set((pathlib.Path(thoth_jax.rewards.__file__).parent / "stop_words.txt").read_text(encoding="utf-8").split())
_stem = functools.cache(snowballstemmer.stemmer("english").stemWord)


@functools.cache
def normal(text):
    text = re.sub(r"(?<=\d)([⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", r"^\1", text)
    text = unicodedata.normalize("NFKC", text)
    text = re.sub("[‐‑‒–—―−]", "-", text)
    return " ".join(text.lower().split())


def blocks(text):
    match = re.fullmatch(
        r"\s*<think>(.*)</think>\s*<key>(.*)</key>\s*<orc>(.*)</orc>\s*<note>(.*)</note>\s*", text, re.S | re.I
    )
    return match.groups() if match else None


def steps_of(key):
    steps = []
    for line in key.strip().split("\n"):
        fields = json.loads(line.split(":", 1)[1])
        lists = ([t for t in map(normal, fields[name]) if t] for name in ("objects", "parameters"))
        steps.append((normal(fields["action"]), *lists))
    return steps


@functools.cache
def words(text):
    found = re.findall(r"[^\W_]+(?:(?<=\d)[.,^]-?\d[^\W_]*)*", normal(text))
    return {_stem(word) for word in found if word not in _STOP}


def lcs(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            table[i][j] = table[i + 1][j + 1] + 1 if a[i] == b[j] else max(table[i + 1][j], table[i][j + 1])
    return table


def align(a, b, mode):
    pairs, i, j = [], 0, 0
    if mode == "lcs":
        table = lcs(a, b)
        while i < len(a) and j < len(b):
            if a[i] == b[j]:
                pairs.append((i, j))
                i, j = i + 1, j + 1
            elif table[i + 1][j] >= table[i][j + 1]:
                i += 1
            else:
                j += 1
        return pairs
    for i, action in enumerate(a):
        at = next((k for k in range(j, len(b)) if b[k] == action), None)
        if at is not None:
            pairs.append((i, at))
            j = at + 1
        elif mode == "greedy_reference":
            break
    return pairs


def iou(a, b):
    a, b = set(a), set(b)
    return len(a & b) / len(a | b) if a | b else 1.0


def tokens(texts):
    return [t for t in re.split(r"[^a-z0-9%µμ\-._]+", " ".join(texts)) if t]


def is_subsequence(a, b):
    rest = iter(b)
    return all(x in rest for x in a)


def score(output, gold_key, c):
    """All components of one pair; `output` has well-formed blocks or is refused."""
    zero = dict.fromkeys(
        ("total", "format_gate", "consistency_gate", "coverage", "step_scale", "order", "content", "semantics"), 0.0
    )
    found = blocks(output)
    if found is None:
        return zero | {"consistency_gate": float(not c.use_consistency_gate)}
    predicted, gold = steps_of(found[1]), steps_of(gold_key)
    orc = [line.split(":", 1)[1] for line in found[2].strip().split("\n")]
    hit = total = 0
    for (action, objects, parameters), sentence in zip(predicted, orc, strict=True):
        if c.coverage == "item":
            items = {action, *objects, *parameters}
            hit += sum(item in normal(sentence) for item in items)
        else:
            items = words(" ".join([action, *objects, *parameters]))
            hit += len(items & words(sentence))
        total += len(items)
    share = hit / total if total else 0.0
    consistent = float(not c.use_consistency_gate or share >= c.coverage_threshold)

    n, m = len(predicted), len(gold)
    limit = max(1, math.floor(c.scale_fraction * m + 1e-9))
    f = math.cos(math.pi * abs(n - m) / (2 * limit)) if abs(n - m) < limit else 0.0
    f = f if c.use_step_scale else 1.0
    mean = sum(len(sentence.split()) for sentence in orc) / len(orc)
    if mean > c.max_words and c.use_length_penalty and c.length_penalty != "none":
        f /= mean / c.max_words if c.length_penalty == "proportional" else mean

    a, b = [step[0] for step in predicted], [step[0] for step in gold]
    if c.order_mode == "lcs":
        order = 2 * lcs(a, b)[0][0] / (n + m)
    elif c.order_mode == "exact":
        order = float(a == b)
    else:
        order = float(is_subsequence(a, b) or is_subsequence(b, a))
    pairs = align(a, b, c.alignment)
    content = 0.0
    for i, j in pairs:
        (_, objects, parameters), (_, gold_objects, gold_parameters) = predicted[i], gold[j]
        obj = iou(objects, gold_objects)
        if obj == 0 and c.object_match == "set_or_token":
            obj = iou(tokens(objects), tokens(gold_objects))
        par = 0.0
        if obj >= c.object_threshold:
            if c.parameter_match == "set" or not parameters or not gold_parameters:
                par = iou(parameters, gold_parameters)
            else:
                par = iou(tokens(parameters), tokens(gold_parameters))
        decay = max(0.0, 1 - (abs(i - j) / m) ** c.decay_power) if c.use_decay else 1.0
        content += decay * (obj + c.parameter_weight * par)
    content /= max(1, len(pairs) if c.content_denominator == "matched" else max(n, m))
    if c.combine == "sum":
        semantics = (order if c.use_order else 0.0) + content
    else:
        semantics = (order if c.use_order else 1.0) * content
    joined = f * semantics if c.final_combine == "product" else f + semantics
    return {
        "total": consistent * joined,
        "format_gate": 1.0,
        "consistency_gate": consistent,
        "coverage": share,
        "step_scale": f,
        "order": order,
        "content": content,
        "semantics": semantics,
    }
