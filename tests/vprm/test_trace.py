"""Prompts, gold traces and the reader of model text."""

import random
import time

import pytest

from tests.vprm import hostile
from thoth_jax.errors import InputError
from vprm_jax import tools
from vprm_jax.metrics import first_wrong_step, matched_steps
from vprm_jax.trace import MAX_STEPS, Trace, TraceFormat, implied, path

FORM = TraceFormat(tools.load("rob1"), "A")
REPORT, METHOD, PREDICTABLE, BASELINE = (step.name for step in FORM.domain.steps)
GOLD = {REPORT: "reported", METHOD: "random", PREDICTABLE: "unpredictable", BASELINE: "none"}
IDEAL = FORM.render(GOLD)


def think(*lines: str, answer: str = "<answer>\nrisk: low\n</answer>") -> str:
    return "\n".join(["<think>", *lines, "</think>", answer])


def codes(trace: Trace) -> set[str]:
    return {problem.partition(":")[0] for problem in trace.problems}


def test_prompt_names_tool_domain_steps_labels_and_verdicts():
    system, user = FORM.messages("  Patients were randomised. ")
    assert (system["role"], user["role"]) == ("system", "user")
    assert "<think>" in system["content"] and "risk: verdict" in system["content"]
    assert "(rob1)" in user["content"] and "Domain A: Random sequence generation" in user["content"]
    assert user["content"].endswith("Report:\nPatients were randomised.")
    for number, step in enumerate(FORM.domain.steps, 1):
        assert f"{number}. {step.name}: {step.question} [{' | '.join(step.labels)}]" in user["content"]
    assert "low | moderate | high" in user["content"]
    full = FORM.messages("x", trace_mode="full")
    assert full[0] != system and full[0] != FORM.messages("x")[0]
    with pytest.raises(InputError, match="trace_mode 'ful'.*'full'"):
        FORM.messages("x", trace_mode="ful")


@pytest.mark.parametrize("letter", "ABCDEF")
@pytest.mark.parametrize("mode", ["full", "path"])
def test_gold_traces_read_back(letter, mode):
    form, rng = hostile.FORMATS[letter], random.Random(letter)
    for _ in range(30):
        steps, risk, _ = hostile.gold_of(rng, form)
        text = form.render(steps, risk, trace_mode=mode, reasons={name: "line\nof text: x" for name in steps})
        trace = form.parse(text)
        wanted = steps if mode == "full" else path(form.domain, steps)
        assert dict(trace.steps) == wanted and list(dict(trace.steps)) == list(wanted)
        assert trace.verdict == risk and trace.think and trace.format_ok and trace.problems == ()
        assert form.verify(trace) == (risk, True, "")
        for (name, label), end in zip(trace.steps, trace.ends, strict=True):
            assert text[:end].endswith(f"Answer: {label}") and text[:end].count("Step ") == list(wanted).index(name) + 1


def test_path_stops_at_the_step_that_settles_the_verdict():
    assert list(path(FORM.domain, GOLD | {METHOD: "non_random"})) == [REPORT, METHOD]
    assert "Step 3" not in FORM.render(GOLD | {METHOD: "non_random"}, trace_mode="path")
    assert "Step 4" in FORM.render(GOLD | {METHOD: "non_random"})
    assert list(path(FORM.domain, GOLD)) == list(GOLD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"Baseline_inbalance": "none"},), "no step 'Baseline_inbalance'.*'Baseline_imbalance'"),
        (({REPORT: "report"},), "Identify_randomization_report: no label 'report'"),
        ((GOLD, "lo"), "tool rob1: no verdict 'lo'"),
        (({METHOD: "random"},), "imply no verdict"),
        (([(REPORT, "reported"), (REPORT.upper(), "reported")], "low"), "occurs twice"),
    ],
)
def test_wrong_gold_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        FORM.render(*arguments)
    with pytest.raises(InputError, match="reads as a part"):
        FORM.render(GOLD, reasons={REPORT: "answer: reported"})
    with pytest.raises(InputError, match="reads as a part"):
        FORM.render(GOLD, reasons={REPORT: "so </think>"})


def test_case_and_outer_space_do_not_matter():
    text = IDEAL.replace("Step 1: ", "  STEP 1 :\t").replace("\n", " \r\n").replace("risk: low", "Risk :  LOW")
    assert FORM.parse(text.replace(REPORT, REPORT.upper())) == Trace(
        FORM.parse(IDEAL).steps, FORM.parse(text).ends, "low", True, True, ()
    )
    assert FORM.parse(IDEAL.replace(REPORT, REPORT.replace("_", " "))).steps == FORM.parse(IDEAL).steps[1:]


def test_the_tools_own_words_for_verdicts_are_read():
    for word in ("unclear", "Unclear", "moderate"):
        assert FORM.parse(IDEAL.replace("risk: low", f"risk: {word}")).verdict == "moderate"
    assert FORM.parse(IDEAL.replace("risk: low", "risk: some concerns")).verdict is None, "rob2's word"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_think"),
        (IDEAL.replace("<think>", ""), "no_think"),
        ("<answer>\nrisk: low\n</answer>", "no_think"),
        ("Well: " + IDEAL, "think_not_first"),
        ("<answer>\nrisk: low\n</answer>\n" + IDEAL, "think_not_first"),
        (IDEAL.replace("</think>", ""), "think_not_closed"),
        (IDEAL.replace("<think>", "<THINK>"), "no_think"),
    ],
)
def test_without_a_complete_think_block_first_nothing_is_read(text, reason):
    assert FORM.parse(text) == Trace((), (), None, False, False, (reason,))
    assert FORM.verify(FORM.parse(text)) == (None, False, reason)


# What costs the format only: steps and verdict are those of the ideal trace.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (IDEAL.replace("Step 2:", "Step 3:"), "misnumbered"),
        (IDEAL.replace("Step 2:", "Step 02:"), "misnumbered"),
        (IDEAL.replace("Step 1:", f"Step {'9' * 5000}:"), "misnumbered"),
        (IDEAL.replace("<think>", "<think>\nAnswer: reported"), "answer_outside_step"),
        (IDEAL.replace("<think>", "<think>\nno <answer> yet"), "tag_in_think"),
        (IDEAL.replace("</think>", "</think>\nso"), "text_between"),
        (IDEAL.replace("<answer>", "<answer>\nrisk: high\n</answer>\n<answer>"), "several_answers"),
        (IDEAL.replace("risk", "The\nrisk"), "text_in_answer"),
        (IDEAL + "\nDone.", "text_after"),
        (IDEAL.replace("</answer>", ""), "answer_not_closed"),
        (IDEAL.replace("</think>", "Step 5: Anything\n</think>"), "unanswered"),
        (IDEAL.replace("</think>", "Step 5: Anything\nAnswer:\n</think>"), "unanswered"),
    ],
)
def test_what_costs_the_format_only(text, reason):
    trace = FORM.parse(text)
    assert reason in codes(trace) and not trace.format_ok
    assert trace.steps == FORM.parse(IDEAL).steps and trace.verdict == "low"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("<answer>\nrisk: low\n</answer>", "", "no_answer"),
        ("risk: low", "low", "no_verdict"),
        ("risk: low", "risk: low\nrisk: low", "several_verdicts"),
        ("risk: low", "risk: low or high", "unknown_verdict:low or high"),
        ("risk: low", "risk:", "unknown_verdict:"),
    ],
)
def test_verdicts_that_are_none(old, new, reason):
    trace = FORM.parse(IDEAL.replace(old, new))
    assert trace.verdict is None and reason in trace.problems and not trace.format_ok and not trace.parsed
    assert FORM.verify(trace) == ("low", False, "no usable verdict")


def test_the_last_answer_counts():
    assert FORM.parse(IDEAL + "\n<answer>risk: high</answer>").verdict == "high"
    assert FORM.parse(IDEAL + "<answer>").verdict is None


def test_a_label_counts_only_under_its_step_and_alone():
    wrong = FORM.parse(IDEAL.replace(METHOD, "Classify_method"))
    assert METHOD not in dict(wrong.steps) and "unknown_step:Classify_method" in wrong.problems and wrong.format_ok
    unknown = FORM.parse(IDEAL.replace("Answer: random", "Answer: randomly"))
    assert dict(unknown.steps)[METHOD] is None and unknown.problems == ("unknown_label:randomly",) and unknown.format_ok
    swapped = FORM.parse(IDEAL.replace("Answer: random", "Answer: reported"))
    assert dict(swapped.steps)[METHOD] is None
    listed = FORM.parse(IDEAL.replace("Answer: random", "Answer: random\nAnswer: non_random"))
    assert dict(listed.steps)[METHOD] is None and codes(listed) == {"several_labels"} and not listed.format_ok
    joined = FORM.parse(IDEAL.replace("Answer: random", "Answer: random | non_random"))
    assert dict(joined.steps)[METHOD] is None


def test_the_first_of_a_repeated_step_counts():
    twice = think(f"Step 1: {REPORT}", "Answer: not_reported", f"Step 2: {REPORT}", "Answer: reported")
    trace = FORM.parse(twice)
    assert trace.steps == ((REPORT, "not_reported"),) and trace.problems == (f"repeated_step:{REPORT}",)
    split = FORM.parse(think(f"Step 1: {REPORT}", "said", f"Step 2: {REPORT}", "Answer: reported"))
    assert split.steps == ((REPORT, None),)


def test_steps_behind_the_limit_are_not_read():
    lines = [line for number in range(1, MAX_STEPS + 1) for line in (f"Step {number}: x", "Answer: y")]
    trace = FORM.parse(think(*lines, f"Step {MAX_STEPS + 1}: {REPORT}", "Answer: reported"))
    assert trace.steps == () and "too_many_steps" in trace.problems and not trace.format_ok


def test_reasons_quote_little_of_the_text():
    trace = FORM.parse(think("Step 1: " + "x" * 10_000, "Answer: y"))
    assert trace.problems == ("unknown_step:" + "x" * 59 + "~",)


def test_an_empty_trace_implies_nothing():
    trace = FORM.parse(think("", answer="<answer>risk: low</answer>"))
    assert "no_steps" in trace.problems and not trace.format_ok
    assert FORM.verify(trace) == (None, False, f"no usable label of {REPORT}")
    assert implied(FORM.domain, {}) is None


def test_rules_that_need_an_unknown_step_imply_nothing():
    assert implied(FORM.domain, {REPORT: "not_reported"}) == "moderate"
    assert implied(FORM.domain, {REPORT: "reported", BASELINE: "likely"}) is None
    assert implied(FORM.domain, {REPORT: "reported", METHOD: None, BASELINE: "none"}) is None
    gap = FORM.verify(FORM.parse(IDEAL.replace("Answer: random", "Answer: unsure")))
    assert gap == (None, False, f"no usable label of {METHOD}")


def test_verify_says_where_verdict_and_labels_part():
    text = FORM.render(GOLD | {METHOD: "non_random"}, "low")
    assert FORM.verify(FORM.parse(text)) == ("high", False, f"{METHOD} = non_random settles high")


def test_steps_are_matched_in_order_each_once():
    gold = tuple(GOLD.items())
    assert matched_steps(gold, gold) == (4, 4)
    assert matched_steps(gold[1:], gold) == (3, 3)
    assert matched_steps((gold[0], ("x", "y"), *gold[2:]), gold) == (3, 3)
    assert matched_steps((gold[3], *gold[:3]), gold) == (3, 3), "a moved step costs itself"
    assert matched_steps(tuple(reversed(gold)), gold) == (1, 1)
    assert matched_steps(((REPORT, "not_reported"), (METHOD, None), *gold[2:]), gold) == (4, 2)
    # Of two alignments of equal length the one with the right label.
    assert matched_steps(((METHOD, "random"), (REPORT, "not_reported")), gold[:2]) == (1, 1)
    assert matched_steps((), gold) == (0, 0)


def reference(form: TraceFormat, text: str):
    """The rules of the format, read line by line: steps with labels, verdict, or None."""
    body = text.lstrip()
    if not body.startswith("<think>") or "</think>" not in body:
        return {}, None
    inside, _, rest = body.removeprefix("<think>").partition("</think>")
    known = {step.name.casefold(): step for step in form.domain.steps}
    groups = []
    for line in inside.split("\n"):
        head, colon, said = line.strip(" \t").partition(":")
        words = head.rstrip(" \t").replace("\t", " ").split(" ")
        words = [word for word in words if word]
        if not colon:
            continue
        lower = [word.lower() if word.isascii() else word for word in words]
        spaced = head[:4].lower() == "step" and head[4:5] in (" ", "\t")
        if len(words) == 2 and lower[0] == "step" and spaced and words[1].isascii() and words[1].isdigit():
            groups.append([said.strip().casefold()])
        elif lower == ["answer"] and groups:
            groups[-1].append(said.strip().casefold())
    steps = {}
    for name, *answers in groups[:MAX_STEPS]:
        if name in known and known[name].name not in steps:
            labels = {label.casefold(): label for label in known[name].labels}
            steps[known[name].name] = labels.get(answers[0]) if len(answers) == 1 else None
    if "<answer>" not in rest:
        return steps, None
    answer = rest.rpartition("<answer>")[2].partition("</answer>")[0]
    risks = [line.strip(" \t").partition(":") for line in answer.split("\n")]
    risks = [said for head, colon, said in risks if colon and head.rstrip(" \t").lower() == "risk"]
    words = {"low": "low", "moderate": "moderate", "unclear": "moderate", "high": "high"}
    return steps, words.get(risks[0].strip().casefold()) if len(risks) == 1 else None


def check_hostile(count: int, seed: int) -> int:
    """Read hostile traces, compare with `reference`; the length of the longest."""
    rng, longest, right, refused = random.Random(seed), 0, 0, set()
    for form, steps, risk, text in hostile.hostile(rng, count):
        trace = form.parse(text)
        assert (dict(trace.steps), trace.verdict) == reference(form, text), text[:500]
        found = form.verify(trace)
        assert found.coherent == (found.implied is not None and found.implied == trace.verdict)
        names, labels = matched_steps(trace.steps, tuple(steps.items()))
        assert 0 <= labels <= names <= len(steps)
        assert len(trace.ends) == len(trace.steps) and all(0 < end <= len(text) for end in trace.ends)
        assert not (trace.format_ok and (trace.verdict is None or not trace.think))
        right += trace.verdict == risk and first_wrong_step(form, trace, steps) is None
        refused |= codes(trace)
        longest = max(longest, len(text))
    assert right > count / 50 and len(refused) > 15
    return longest


def test_hostile_traces():
    check_hostile(2_000, 2)


@pytest.mark.slow
def test_a_hundred_thousand_hostile_traces():
    assert check_hostile(100_000, 100_000) >= 2_000_000


def test_tricks_are_read_in_little_time_and_earn_nothing():
    for text in hostile.tricks():
        start = time.perf_counter()
        trace = FORM.parse(text)
        FORM.verify(trace)
        assert time.perf_counter() - start < 2, text[:60]
        assert sum(label is not None for _, label in trace.steps) <= 1
        assert len(str(trace.problems)) < 10_000


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "<think>" + "Step 1" + " " * n + "</think>",
        lambda n: "<think>" + "Step " + "1" * n + "</think>",
        lambda n: "<think>" + " \t" * n + "</think>",
        lambda n: "<think>" + "step 1:answer:\n" * n + "</think>",
        lambda n: "<think></think>" + "<answer>" * n,
        lambda n: "<think></think><answer>" + "risk:" * n,
        lambda n: "<think></think><answer>" + "\nrisk" + " " * n,
        lambda n: " " * n + "<think>" * n,
    ],
)
def test_time_is_linear(make):
    def seconds(text):
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            FORM.parse(text)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(make(200_000)) < 30 * seconds(make(20_000)) + 0.05
