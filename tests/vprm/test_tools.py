"""Decision procedures: every tuple of labels against a plain reading of the table, and the command."""

import itertools

import pytest

from thoth_jax.errors import InputError
from vprm_jax import cli, tools

DOMAIN_A = ("Identify_randomization_report", "Classify_randomization_method")
DOMAIN_A += ("Assess_sequence_predictability", "Baseline_imbalance")


def plain_domain_a(report: str, method: str, predictability: str, imbalance: str) -> str:
    """Algorithm 1 of the paper, written out."""
    if report == "not_reported":
        return "moderate"
    if method == "non_random":
        return "high"
    if predictability == "predictable":
        return "moderate"
    if imbalance == "likely":
        return "high"
    return "low"


def all_tuples(domain: tools.Domain):
    for labels in itertools.product(*(step.labels for step in domain.steps)):
        yield dict(zip((step.name for step in domain.steps), labels, strict=True))


def test_domain_a_every_tuple():
    domain = tools.load("rob1").domain("A")
    assert tuple(step.name for step in domain.steps) == DOMAIN_A
    verdicts = []
    for labels in all_tuples(domain):
        verdicts.append(domain.verdict(labels))
        assert verdicts[-1] == plain_domain_a(*labels.values())
    assert {verdict: verdicts.count(verdict) for verdict in tools.VERDICTS} == {"low": 1, "moderate": 10, "high": 5}


@pytest.mark.parametrize(
    ("letter", "labels", "verdict"),
    [
        ("B", "reported envelopes_or_containers unclear unforeseeable", "moderate"),
        ("B", "reported open_or_rule_based adequate unforeseeable", "high"),
        ("B", "reported central_or_equivalent adequate unforeseeable", "low"),
        ("C", "reported unlikely_influenced not_blinded broken", "low"),
        ("C", "reported likely_influenced blinded broken", "high"),
        ("D", "unlikely_influenced not_reported not_blinded broken", "low"),
        ("D", "likely_influenced not_reported blinded intact", "moderate"),
        ("E", "reported appropriate negligible related imbalanced", "low"),
        ("E", "reported appropriate non_negligible related imbalanced", "high"),
        ("E", "reported appropriate non_negligible related balanced", "low"),
        ("F", "key_outcome_missing usable no_plan consistent", "high"),
        ("F", "all_reported usable no_plan_but_clearly_complete deviating", "low"),
        ("F", "all_reported usable plan_available deviating", "high"),
    ],
)
def test_other_domains(letter, labels, verdict):
    domain = tools.load("rob1").domain(letter)
    names = [step.name for step in domain.steps]
    assert domain.verdict(dict(zip(names, labels.split(), strict=True))) == verdict


# Of the official criteria as trees: tuples of labels, and how many give low, moderate and high.
COUNTS = {
    "A": (16, 1, 10, 5), "B": (36, 2, 22, 12), "C": (16, 5, 8, 3), "D": (16, 9, 4, 3), "E": (48, 9, 26, 13),
    "F": (24, 3, 2, 19), "G": (8, 3, 4, 1), "H": (12, 3, 4, 5), "I": (16, 3, 9, 4),
}  # fmt: skip


@pytest.mark.parametrize("letter", COUNTS)
def test_every_tuple_of_every_domain(letter):
    domain = tools.load("rob1" if letter in "ABCDEF" else "epoc").domain(letter)
    found = [domain.verdict(labels) for labels in all_tuples(domain)]
    assert (len(found), *(found.count(verdict) for verdict in tools.VERDICTS)) == COUNTS[letter]
    assert all(step.question.endswith("?") for step in domain.steps)


COLLAPSED = ("yes", "no", "ni")


def plain_rob2(letter: str, a: dict[str, str]) -> str:
    """The tables of RoB 2 (22 August 2019), written out for answers yes, no and ni of questions that are asked."""
    if letter == "D1":
        if a["1.2"] == "no" or (a["1.2"] == "ni" and a["1.3"] == "yes"):
            return "high"
        clean = a["1.2"] == "yes" and a["1.1"] != "no" and a["1.3"] != "yes"
        return "low" if clean else "moderate"
    if letter == "D3":
        if a["3.1"] == "yes" or a["3.2"] == "yes" or a["3.3"] == "no":
            return "low"
        return "moderate" if a["3.4"] == "no" else "high"
    if letter == "D4":
        if "yes" in (a["4.1"], a["4.2"]):
            return "high"
        if "no" in (a["4.3"], a["4.4"]):
            return "low" if a["4.2"] == "no" else "moderate"
        return "moderate" if a["4.5"] == "no" else "high"
    if "yes" in (a["5.2"], a["5.3"]):
        return "high"
    return "low" if a["5.1"] == "yes" and "ni" not in (a["5.2"], a["5.3"]) else "moderate"


@pytest.mark.parametrize(("letter", "known"), [("D1", 27), ("D3", 0), ("D4", 0), ("D5", 27)])
def test_rob2_equals_its_tables(letter, known):
    domain = tools.load("rob2").domain(letter)
    names = [step.name for step in domain.steps]
    compared = 0
    for answers in itertools.product(COLLAPSED, repeat=len(names)):
        labels = dict(zip(names, answers, strict=True))
        if any(step.read(labels[step.name]) is None for step in domain.steps):
            continue  # a question without that answer
        asked = domain.asked(labels)
        # What is not asked is na for the tool; the written-out table gets an answer that cannot decide there.
        given = {name: label if name in asked else "na" for name, label in labels.items()}
        assert domain.verdict(given) == plain_rob2(letter, given), given
        compared += 1
    assert compared == known or (not known and compared >= 81)


def test_rob2_reads_all_spellings_of_an_answer():
    domain = tools.load("rob2").domain("D1")
    for yes, no in (("Y", "N"), ("py", "pn"), ("Yes", "NO")):
        assert domain.verdict({"1.1": yes, "1.2": yes, "1.3": no}) == "low"
    assert (
        tools.load("rob2").overall({"D1": "low", "D2": "low", "D3": "moderate", "D4": "low", "D5": "low"}) == "moderate"
    )


def test_steps_after_the_deciding_one_are_not_needed():
    domain = tools.load("rob1").domain("a")
    assert domain.verdict({DOMAIN_A[0]: "reported", DOMAIN_A[1]: "non_random"}) == "high"


@pytest.mark.parametrize(
    "labels",
    [{}, {DOMAIN_A[0]: "reported"}, {DOMAIN_A[0]: "report"}, {"Baseline_inbalance": "none"}, {DOMAIN_A[0]: "maybe"}],
)
def test_a_label_that_a_rule_needs_and_lacks_leaves_no_verdict(labels):
    assert tools.load("rob1").domain("A").verdict(labels) is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({DOMAIN_A[0]: "report"}, "no label 'report'.*'reported'"),
        ({"Baseline_inbalance": "none"}, "no step 'Baseline_inbalance'.*'Baseline_imbalance'"),
        ({DOMAIN_A[0]: "not_reported", DOMAIN_A[3]: "maybe"}, "Baseline_imbalance: no label 'maybe'"),
    ],
)
def test_bad_labels_of_gold_rows_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        tools.load("rob1").domain("A").check(labels)


def test_unknown_tool_and_domain_are_refused():
    with pytest.raises(InputError, match="no tool 'rob11'.*'rob1'"):
        tools.load("rob11")
    with pytest.raises(InputError, match="no domain 'Z'; its domains are A, B, C, D, E, F"):
        tools.load("rob1").domain("Z")


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    assert "tools" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("vprm (thoth-jax) ")


def test_no_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_tools_command(capsys):
    assert cli.main(["tools"]) == 0
    assert "A  Random sequence generation (selection bias): 4 steps" in capsys.readouterr().out
    assert cli.main(["tools", "--tool", "rob1", "--domain", "A"]) == 0
    out = capsys.readouterr().out
    assert "non_random -> high" in out and "otherwise -> low" in out
    assert cli.main(["tools", "--domain", "A", f"{DOMAIN_A[0]}=reported", f"{DOMAIN_A[1]}=non_random"]) == 0
    assert capsys.readouterr().out == "high\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tool", "nine"],
        ["--domain", "Q"],
        ["a=b"],
        ["--domain", "A", "reported"],
        ["--domain", "A", f"{DOMAIN_A[0]}=reported", f"{DOMAIN_A[0]}=not_reported"],
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, capsys):
    assert cli.main(["tools", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vprm: ") and captured.err.count("\n") == 1
