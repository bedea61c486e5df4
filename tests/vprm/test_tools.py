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


@pytest.mark.parametrize("letter", "ABCDEF")
def test_every_domain_is_a_well_formed_decision_list(letter):
    domain = tools.load("rob1").domain(letter)
    reached = {domain.verdict(labels) for labels in all_tuples(domain)}
    assert reached == set(tools.VERDICTS)
    assert domain.otherwise in tools.VERDICTS
    for step in domain.steps:
        assert step.question.endswith("?")
        assert None in step.labels.values(), "no label goes on"
        assert any(step.labels.values()), "no label decides"
        assert set(step.labels.values()) <= {None, *tools.VERDICTS}


def test_steps_after_the_deciding_one_are_not_needed():
    domain = tools.load("rob1").domain("a")
    assert domain.verdict({DOMAIN_A[0]: "reported", DOMAIN_A[1]: "non_random"}) == "high"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, "needs a label of Identify_randomization_report"),
        ({DOMAIN_A[0]: "reported"}, "needs a label of Classify_randomization_method"),
        ({DOMAIN_A[0]: "report"}, "no label 'report'.*'reported'"),
        ({"Baseline_inbalance": "none"}, "no step 'Baseline_inbalance'.*'Baseline_imbalance'"),
        ({DOMAIN_A[0]: "not_reported", DOMAIN_A[3]: "maybe"}, "Baseline_imbalance: no label 'maybe'"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        tools.load("rob1").domain("A").verdict(labels)


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
