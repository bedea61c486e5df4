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
        epilog="example: vprm tools --domain A Identify_randomization_report=not_reported",
    )
    command.add_argument("--tool", default="rob1", metavar="NAME", help=f"one of: {', '.join(tools.TOOLS)} (rob1)")
    command.add_argument("--domain", metavar="LETTER", help="show the steps of this domain")
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
    tool = tools.load(arguments.tool)
    if arguments.domain is None:
        if arguments.labels:
            raise InputError("labels need --domain LETTER before them")
        print(f"{tool.name}: {tool.title}")
        for domain in tool.domains:
            print(f"  {domain.letter}  {domain.name} ({domain.bias}): {len(domain.steps)} steps")
        return
    domain = tool.domain(arguments.domain)
    if arguments.labels:
        print(domain.verdict(_labels(arguments.labels)))
        return
    print(f"{tool.name} {domain.letter}: {domain.name} ({domain.bias}); {domain.source}")
    for number, step in enumerate(domain.steps, 1):
        answers = [f"{label} -> {verdict or 'go on'}" for label, verdict in step.labels.items()]
        print(f"  {number}. {step.name}: {step.question}\n     {', '.join(answers)}")
    print(f"  otherwise -> {domain.otherwise}")


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
