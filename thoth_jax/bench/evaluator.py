"""The peer of the SCORE benchmark: the published evaluator's algorithm in plain Python, pair by pair.

Written anew from its description: parse both key blocks with a regular expression and json, lower-case, then compare
action lists (equal, LCS), align greedily, and average set and token overlaps with position decay.
"""

import json
import re

_STEP = re.compile(r"Step\s+\d+\s*:\s*(\{.*\})\s*$", re.IGNORECASE)
_TOKEN = re.compile(r"[a-z0-9%µμ\-._]+")


def parse(text: str) -> tuple[int, list[tuple[str, list[str], list[str]]]]:
    """Number of lines, and (action, objects, parameters) of the lines that are steps."""
    lines = [line.rstrip() for line in text.strip().splitlines() if line.strip()]
    steps = []
    for line in lines:
        match = _STEP.match(line)
        if not match:
            continue
        try:
            fields = json.loads(match.group(1))
        except ValueError:
            continue
        if not fields:
            continue
        steps.append(
            (
                fields.get("action", "").strip().lower(),
                [text.strip().lower() for text in fields.get("objects") or [] if text.strip()],
                [text.strip().lower() for text in fields.get("parameters") or [] if text.strip()],
            )
        )
    return len(lines), steps


def compare(predicted, gold) -> dict[str, float]:
    """The metrics of two parsed key blocks."""
    (lines, steps), (gold_lines, gold_steps) = predicted, gold
    actions, gold_actions = [step[0] for step in steps], [step[0] for step in gold_steps]
    pairs = _align(actions, gold_actions)
    obj = par = decay = content = 0.0
    for i, j in pairs:
        one, other = steps[i], gold_steps[j]
        o = _jaccard(set(one[1]), set(other[1])) or _jaccard(_tokens(one[1]), _tokens(other[1]))
        p = 0.0
        if o >= 0.5 and bool(one[2]) == bool(other[2]):
            p = _jaccard(_tokens(one[2]), _tokens(other[2]))
        m = max(0.0, 1 - (abs(i - j) / max(len(gold_steps), 1)) ** 1.5)
        obj, par, decay, content = obj + o, par + p, decay + m, content + m * (o + 0.5 * p)
    count = max(len(pairs), 1)
    both = len(actions) + len(gold_actions)
    return {
        "step_match": float(lines == gold_lines),
        "order_strict": float(actions == gold_actions),
        "order_lcs": 2 * _lcs(actions, gold_actions) / both if both else 1.0,
        "order_tau": _tau(pairs),
        "content_score": content / count,
        "avg_obj": obj / count,
        "avg_para": par / count,
        "avg_mx": decay / count,
    }


def _align(actions, gold_actions) -> list[tuple[int, int]]:
    pairs, pointer = [], 0
    for i, action in enumerate(actions):
        while pointer < len(gold_actions) and gold_actions[pointer] != action:
            pointer += 1
        if pointer == len(gold_actions):
            break
        pairs.append((i, pointer))
        pointer += 1
    return pairs


def _lcs(one, other) -> int:
    row = [0] * (len(other) + 1)
    for item in one:
        diagonal = 0
        for j, value in enumerate(other, 1):
            above = row[j]
            row[j] = diagonal + 1 if item == value else max(above, row[j - 1])
            diagonal = above
    return row[-1]


def _tau(pairs) -> float:
    if len(pairs) < 2:
        return 0.0
    total = 0
    for a in range(len(pairs)):
        for b in range(a + 1, len(pairs)):
            total += 1 if (pairs[a][0] - pairs[b][0]) * (pairs[a][1] - pairs[b][1]) > 0 else -1
    return total / (len(pairs) * (len(pairs) - 1) / 2)


def _tokens(texts) -> set[str]:
    return set(_TOKEN.findall(" ".join(texts)))


def _jaccard(one: set, other: set) -> float:
    if not one and not other:
        return 1.0
    return len(one & other) / len(one | other)
