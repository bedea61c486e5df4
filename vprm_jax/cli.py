"""The `vprm` command."""

import argparse
import importlib.metadata
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
    except InputError as error:
        print(f"vprm: {error}", file=sys.stderr)
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
    return parser


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
