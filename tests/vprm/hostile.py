"""Traces of all kinds: gold ones, mutations of them, and tricks of up to 2 MB."""

import random

from vprm_jax import tools
from vprm_jax.trace import TRACE_MODES, TraceFormat, implied

FORMATS = {letter: TraceFormat(tools.load("rob1"), letter) for letter in "ABCDEF"}

TEXT_SPLICES = ["\0", "\ud800", "\u2028", "\u3000", "\n", "\r\n", "ﷺ", "İ", "e\u0301" * 50, "ſtep ١: ", "9" * 5000]
TRACE_SPLICES = [
    *("<think>", "</think>", "<answer>", "</answer>", "<THINK>", "<answer>\nrisk: low\n</answer>"),
    *("\nStep 1: ", "\nstep 2 : Baseline_imbalance", "\nStep 99999999999999999999: ", "\nAnswer: ", "\nANSWER:none\n"),
    *("\nrisk: high\n", "risk:", "\nAnswer: reported, not_reported\n", "\nStep 1: Identify_randomization_report\n"),
]
SPLICES = TEXT_SPLICES + TRACE_SPLICES


def gold_of(rng: random.Random, form: TraceFormat) -> tuple[dict[str, str], str, str]:
    """Random labels, the verdict that they imply, and their trace."""
    steps = {step.name: rng.choice(list(step.labels)) for step in form.domain.steps}
    risk = implied(form.domain, steps)
    reasons = {name: "said of it in section 2." for name in steps if rng.random() < 0.5}
    return steps, risk, form.render(steps, risk, trace_mode=rng.choice(TRACE_MODES), reasons=reasons)


def mutate(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 5)):
        at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:at] + rng.choice(SPLICES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[min(to, at + rng.randrange(30)) :]
        elif kind == 2:
            text = text[:to] + text[at:]
        elif kind == 3:
            text = text[:at]
        elif kind == 4:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines)), lines.pop(rng.randrange(len(lines))))
            text = "\n".join(lines)
        else:
            text = text[:at] + rng.choice(SPLICES) + text[to:]
    return text


def tricks() -> list[str]:
    name, other = (step.name for step in FORMATS["A"].domain.steps[:2])

    def think(body, answer="risk: low"):
        return f"<think>\n{body}\n</think>\n<answer>\n{answer}\n</answer>"

    return [
        "",
        "\0" * 100_000,
        "<think>" * 140_000,
        "<think>" + "</think>" * 200_000,
        "<think></think>" + "<answer>" * 200_000,
        "<think></think>" + "<answer></answer>" * 100_000,
        "<think></think><answer>" + "risk: low\n" * 200_000,
        "<think></think><answer>risk: " + "low " * 500_000,
        " " * 2_000_000,
        " " * 1_000_000 + "<think>" + " " * 1_000_000,
        think("\n" * 1_000_000),
        think(" \t" * 1_000_000),
        think("step " * 400_000),
        think("Step" + " " * 1_000_000),
        think("Step " + "1" * 1_000_000),
        think("Step " + "1" * 500_000 + " " * 500_000),
        think("Step 1: " + "x" * 1_000_000),
        think("Step 1: " + name + " " * 1_000_000),
        think(f"Step 1: {name}\nAnswer: " + "İ" * 500_000),
        think(f"Step 1: {name}\nAnswer: reported\n" * 50_000),
        think("\n".join(f"Step {number}: step_{number}\nAnswer: x" for number in range(1, 60_000))),
        think(f"Step 1: {name}\n" + "Answer: reported\nAnswer: not_reported\n" * 50_000),
        think("Answer: reported\n" * 100_000),
        think(f"Step 1: {name}\rAnswer: reported\r" * 50_000),
        think(f"Step 1: {name} {other}\nAnswer: reported random"),
    ]


def hostile(rng: random.Random, count: int):
    """60 % mutations, 20 % random, 10 % truncated, 10 % tricks and their mutations: (form, steps, risk, text)."""
    golds = [(form, *gold_of(rng, form)) for form in FORMATS.values() for _ in range(20)]
    long = tricks()
    alphabet = "<>/:\n\t Stepanswrik0123456789_\0\x01é\ud800\u2028"
    for number in range(count):
        form, steps, risk, text = rng.choice(golds)
        kind = number % 10
        if kind < 6:
            text = mutate(rng, text)
        elif kind < 8:
            text = "".join(rng.choices(alphabet, k=int(10 ** rng.uniform(0, 3.5))))
        elif kind < 9:
            text = text[: rng.randrange(len(text))]
        else:
            trick = rng.choice(long)
            text = trick if rng.random() < 0.02 else mutate(rng, trick[: int(10 ** rng.uniform(1, 4.5))])
        yield form, steps, risk, text
