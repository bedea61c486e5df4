"""The `vprm` command."""

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence

from thoth_jax.cli_parser import Parser
from thoth_jax.errors import InputError
from vprm_jax import tools


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 bad input."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has left
    except InputError as error:
        print(f"vprm: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"vprm: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="vprm",
        description="Verifiable process rewards for risk-of-bias assessment, on the thoth_jax stack.",
        epilog="example: vprm tools --tool rob1 --domain A",
    )
    parser.add_argument("--version", action="version", version=f"vprm (thoth-jax) {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command = commands.add_parser(
        "tools",
        help="list the decision procedures, or give the verdict of step labels",
        description="List tools and domains; with --domain its steps; with labels after it, their verdict.",
        epilog="example: vprm tools --tool rob1 --domain A Identify_randomization_report=not_reported",
    )
    names = ", ".join(tools.TOOLS)
    command.add_argument(
        "--tool", metavar="NAME", help=f"{names}, or your own .yaml or .json file (all; with --domain rob1)"
    )
    command.add_argument("--domain", metavar="LETTER", help="show the steps and rules of this domain")
    command.add_argument("--effect", metavar="NAME", help="which variant of the domain: assignment or adhering")
    command.add_argument("labels", nargs="*", metavar="STEP=LABEL", help="give the verdict of these labels")
    command.set_defaults(run=_tools)
    command = commands.add_parser(
        "verify",
        help="check traces against the rules of their domain",
        description="For each trace the verdict that its labels imply, the stated one, and where they part.",
        epilog="example: vprm verify --tool rob1 --input traces.jsonl --output verified.jsonl",
    )
    command.add_argument("--tool", required=True, metavar="NAME", help=f"one of: {', '.join(tools.TOOLS)}")
    command.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help='rows {"id", "domain", "text"}; with gold_steps and gold_risk they are compared too',
    )
    _reporting(command, "trace")
    command.set_defaults(run=_verify)
    command = commands.add_parser(
        "evaluate",
        help="accuracy, macro-F1, coherence and their intervals of stored answers",
        description="Metrics of answers against golds, overall, by tool and by domain, with bootstrap intervals.",
        epilog="example: vprm evaluate --gold gold.jsonl --answers answers.jsonl --json",
    )
    command.add_argument(
        "--gold",
        required=True,
        metavar="FILE",
        help='rows {"id", "tool", "domain", "gold_risk"}, with "gold_steps" and "provenance" where they are known',
    )
    command.add_argument(
        "--answers", metavar="FILE", help='rows {"id", "output"}; without them the golds are judged themselves'
    )
    command.add_argument("--against", metavar="FILE", help="another run's answers, for paired differences")
    command.add_argument("--tool", metavar="NAME", help="of gold rows that do not name theirs")
    command.add_argument(
        "--cluster",
        metavar="FIELD",
        help="gold field that rows which are not independent share (family where all rows have it, else id)",
    )
    command.add_argument("--samples", type=int, default=2000, help="draws of the bootstrap (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0)
    _reporting(command, "answer")
    command.set_defaults(run=_evaluate)
    return parser


def _reporting(command: argparse.ArgumentParser, row: str) -> None:
    command.add_argument("--output", metavar="FILE", help=f"write one JSON row per {row}")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    command.add_argument("--skip-bad", action="store_true", help="count and list malformed rows and go on without them")


def _version() -> str:
    try:
        return importlib.metadata.version("thoth-jax")
    except importlib.metadata.PackageNotFoundError:
        return "(source tree, not installed)"


def _tools(arguments: argparse.Namespace) -> None:
    if arguments.domain is None:
        if arguments.labels or arguments.effect:
            raise InputError(f"{'labels need' if arguments.labels else '--effect needs'} --domain LETTER")
        for name in tools.TOOLS if arguments.tool is None else [arguments.tool]:
            _list_domains(tools.load(name))
        return
    tool = tools.load(arguments.tool or "rob1")
    domain = tool.domain(arguments.domain, arguments.effect)
    if not arguments.labels:
        _show(tool, domain)
        return
    decision = domain.decide(domain.check(_labels(arguments.labels)))
    if decision.verdict is None:
        raise InputError(f"domain {domain.letter}: the verdict needs a label of {', '.join(decision.needs)}")
    print(_shown(tool, decision.verdict))


def _shown(tool: tools.Tool, verdict: str) -> str:
    """A verdict, with the tool's own word where it is another one."""
    word = tool.words[verdict]
    return verdict if word.casefold() == verdict else f"{verdict} ({word})"


def _list_domains(tool: tools.Tool) -> None:
    print(f"{tool.name}: {tool.title}")
    print(f"  verdicts: {', '.join(_shown(tool, verdict) for verdict in tool.verdicts)}")
    for domain in tool.domains:
        bias = f" ({domain.bias})" if domain.bias else ""
        print(f"  {domain.letter}  {domain.name}{bias}: {len(domain.steps)} steps; source: {domain.source}")


def _show(tool: tools.Tool, domain: tools.Domain) -> None:
    bias = f" ({domain.bias})" if domain.bias else ""
    note = f" ({domain.note})" if domain.note else ""
    print(f"{tool.name} {domain.letter}: {domain.name}{bias}; source: {domain.source}{note}")
    for number, step in enumerate(domain.steps, 1):
        print(f"  {number}. {step.name}: {step.question}\n     {' | '.join(step.labels)}")
        if step.asked_if is not None:
            print(f"     asked if {step.asked_if}")
    for number, part in enumerate(domain.parts, 1):
        if len(domain.parts) > 1:
            print(f"  part {number} (the worst part counts)")
        for rule in part.rules:
            print(f"  {rule.condition} -> {_shown(tool, rule.verdict)}")
        if part.otherwise is not None:
            print(f"  otherwise -> {_shown(tool, part.otherwise)}")


def _verify(arguments: argparse.Namespace) -> None:
    from vprm_jax.files import verify_file, write_jsonl
    from vprm_jax.tables import traces_table

    rows, summary = verify_file(arguments.input, arguments.tool, arguments.skip_bad)
    if arguments.output:
        write_jsonl(arguments.output, rows)
    print(json.dumps(summary | {"traces": rows}) if arguments.json else traces_table(rows, summary))


def _evaluate(arguments: argparse.Namespace) -> None:
    from vprm_jax.files import evaluate_file, write_jsonl
    from vprm_jax.tables import metrics_table

    if arguments.against and not arguments.answers:
        raise InputError("--against needs --answers FILE to compare with")
    rows, summary = evaluate_file(
        arguments.gold,
        arguments.answers,
        arguments.against,
        tool=arguments.tool,
        cluster=arguments.cluster,
        skip_bad=arguments.skip_bad,
        samples=arguments.samples,
        seed=arguments.seed,
    )
    if arguments.output:
        write_jsonl(arguments.output, rows)
    print(json.dumps(summary) if arguments.json else metrics_table(summary))


def _labels(words: Sequence[str]) -> dict[str, str]:
    labels = {}
    for word in words:
        name, separator, label = word.partition("=")
        if not separator or not name or not label:
            raise InputError(f"{word!r}: expected STEP=LABEL")
        if name in labels:
            raise InputError(f"{word!r}: {name} has a label already ({labels[name]})")
        labels[name] = label
    return labels


if __name__ == "__main__":
    sys.exit(main())
