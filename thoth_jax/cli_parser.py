"""Arguments of the `thoth` command."""

import argparse
import importlib.metadata

from thoth_jax import config as configuration
from thoth_jax.errors import InputError

_EXAMPLES = {
    "quickstart": "thoth quickstart --out runs/quickstart",
    "train": "thoth train --config.stage=sft --config.batch_size=2 --config.num_steps=5 --config.run_dir=runs/try",
    "generate": 'thoth generate --model runs/try --prompt "How is plasmid DNA released from E. coli?" --max-tokens 64',
    "score": "thoth score --gold bundled",
    "evaluate": "thoth evaluate --gold bundled --json",
    "report": "thoth report runs/quickstart",
    "data": "thoth data show --type scaling",
    "data show": "thoth data show --type scaling --split test --number 2",
    "data stats": "thoth data stats",
    "data build": "thoth data build --source bundled --out runs/corpus",
    "convert": "thoth convert --model runs/quickstart --to hf --out models/quickstart",
    "bench": "thoth bench score --pairs 1024 --repeats 3",
}


class Parser(argparse.ArgumentParser):
    """One line for a wrong argument, as for every other fault."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _number(kind: type, minimum: float, maximum: float = 2**31 - 1):
    """An argparse type: a number in a range."""

    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not minimum <= value <= maximum:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r}: expected {what} from {minimum} to {maximum}")
        return value

    return parse


def parser_of_commands() -> argparse.ArgumentParser:
    parser = Parser(prog="thoth", description="Post-training of reasoning models on JAX: protocols and SCORE.")
    parser.add_argument("--version", action="version", version=f"thoth-jax {importlib.metadata.version('thoth-jax')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name, summary, group=commands):
        example = f"example:\n  {_EXAMPLES[name]}"
        sub = group.add_parser(
            name.split()[-1],
            help=summary,
            description=summary,
            epilog=example,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=name)
        return sub

    sub = command(
        "quickstart",
        "all three stages with a tiny policy on the bundled items, about three minutes on two cores",
    )
    sub.add_argument(
        "--out", default="runs/quickstart", metavar="DIR", help="directory of the runs (default: %(default)s)"
    )
    sub.add_argument("--seed", type=_number(int, 0), default=0)

    sub = command("train", "run one stage: pretrain, sft or rl; the same command again continues it")
    sub.add_argument(
        "--config",
        metavar="FILE",
        help="Python file with get_config(), or a run's config.json; --config.KEY=VALUE overrides a key",
    )
    sub.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved configuration, the objective and the shapes, and stop",
    )
    sub.add_argument(
        "--skip-bad", action="store_true", help="count and list malformed data rows and go on without them"
    )
    sub.add_argument(
        "--allow-config-change", action="store_true", help="continue a run although its configuration differs"
    )
    sub.add_argument(
        "--keys",
        choices=configuration.STAGES,
        metavar="STAGE",
        help="list the keys of a stage with their defaults, and stop",
    )

    sub = command("generate", "answer one prompt, or every row of a file")
    source = sub.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one question; the answer goes to standard output")
    source.add_argument("--input", metavar="FILE", help='rows {"id", "prompt"} or gold rows')
    sub.add_argument(
        "--output",
        metavar="FILE",
        help='with --input: rows {"id", "output"} are appended; rows that are there already are skipped',
    )
    _answering(sub)
    sub.add_argument("--skip-bad", action="store_true", help="count and list malformed rows and go on without them")

    for name, summary in (
        ("score", "SCORE and its parts of answers against gold protocols"),
        ("evaluate", "the metrics of SciRecipe-Eval, overall, by level and by type"),
    ):
        sub = command(name, summary)
        sub.add_argument(
            "--gold", required=True, metavar="FILE", help='gold rows: evaluation, sft or rl format; or "bundled"'
        )
        sub.add_argument(
            "--input",
            metavar="FILE",
            help='rows {"id", "output"}; without it and --model and --endpoint the golds are judged themselves',
        )
        sub.add_argument(
            "--answers",
            metavar="FILE",
            help="with --model or --endpoint: keep the answers there; the same command again goes on with them",
        )
        _answering(sub)
        sub.add_argument("--output", metavar="FILE", help="write one JSON row per answer")
        if name == "evaluate":
            sub.add_argument(
                "--lexical", action="store_true", help="BLEU, ROUGE, METEOR, ... of the orc too (extra: eval)"
            )
        else:
            sub.add_argument(
                "--explain",
                type=_number(int, 0),
                nargs="?",
                const=3,
                default=0,
                metavar="N",
                help="show of the first N answers (3 where N is left out) how the SCORE came about, step by step",
            )
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        sub.add_argument("--skip-bad", action="store_true", help="count and list malformed rows and go on without them")

    sub = command("report", "curves, results and sample answers of runs as one HTML page")
    sub.add_argument("runs", nargs="+", metavar="RUN", help="run directory, or a directory of runs, finished or not")
    sub.add_argument(
        "--out", default="", metavar="FILE", help="default: report.html in RUN, or here where there are several"
    )

    sub = command("data", "look at data files, and build the bundled corpus from its sources")
    group = sub.add_subparsers(dest="what", metavar="WHAT", required=True)
    sub = command("data show", "print items so that they can be read", group)
    sub.add_argument("id", nargs="?", default="", help="of one item; without it the first that fits")
    _data_input(sub)
    sub.add_argument("--type", default="", help="only items of this type")
    sub.add_argument("--split", default="", help="only items of this split")
    sub.add_argument("--number", type=_number(int, 1), default=1, help="how many (default: %(default)s)")
    sub = command("data stats", "count items by type, split and subfield, and measure them in tokens", group)
    _data_input(sub)
    sub.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="HF directory, tokenizer.json or SentencePiece .model (default: the bundled)",
    )
    sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    sub = command("data build", "build items, records, drills' sources and tokenizer from YAML files", group)
    sub.add_argument(
        "--source", default="bundled", metavar="DIR", help='directory of YAML files, or "bundled" (default)'
    )
    sub.add_argument("--out", default="runs/corpus", metavar="DIR", help="where to (default: %(default)s)")

    sub = command("convert", "write a run or a model as a Hugging Face model, or adapters for PEFT")
    sub.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="run directory, quickstart directory, HF directory, hub id or GGUF file",
    )
    sub.add_argument("--out", required=True, metavar="DIR", help="where to; must be empty or not exist")
    sub.add_argument(
        "--to", choices=("hf", "peft"), default="hf", help="hf: a whole model (default); peft: a run's adapters alone"
    )
    sub.add_argument("--merge", action="store_true", help="add the adapters to the weights, in float32")
    sub.add_argument("--adapter", metavar="DIR", help="a PEFT adapter to merge into --model")
    sub.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the written weights (default: as they are stored)"
    )
    sub.add_argument(
        "--max-shard-size",
        type=_number(float, 1e-6),
        default=4.0,
        metavar="GB",
        help="of a file (default: %(default)s)",
    )

    sub = command("bench", "measure beside a peer in the same run; prints one JSON object")
    sub.add_argument(
        "what",
        choices=("score", "rollout", "train"),
        help="score: text to SCORE beside the published evaluator's algorithm; rollout: the engine, train: steps of "
        "training, beside peers",
    )
    sub.add_argument(
        "--pairs", type=_number(int, 8), default=1024, help="score: answers of a repeat (default: %(default)s)"
    )
    sub.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PATH",
        help="rollout, train: Python with google-tunix, or with transformers and torch (launch/peers.sh; repeatable)",
    )
    sub.add_argument(
        "--case", action="append", metavar="NAME", help="rollout: even, refill, prefix or long (default: all)"
    )
    sub.add_argument(
        "--allocator",
        choices=("keep", "default"),
        default="keep",
        help="rollout: whether all contenders keep freed memory (default: %(default)s)",
    )
    sub.add_argument("--repeats", type=_number(int, 1, 1000), default=7, help="(default: %(default)s)")
    sub.add_argument("--seed", type=_number(int, 0), default=0)
    sub.add_argument("--output", metavar="FILE", help="write the JSON object there too")
    return parser


def _answering(sub: argparse.ArgumentParser) -> None:
    """Who answers, and how."""
    sub.add_argument(
        "--model",
        metavar="DIR",
        help="run directory, quickstart directory or HF model directory; with --endpoint the name of a served model",
    )
    sub.add_argument(
        "--endpoint",
        metavar="URL",
        help="a server with OpenAI's protocol, like http://localhost:8000/v1; its key comes from OPENAI_API_KEY",
    )
    sub.add_argument("--temperature", type=_number(float, 0, 1000), default=0.0, help="0 (default): greedy")
    sub.add_argument("--top-p", type=_number(float, 0, 1), default=1.0)
    sub.add_argument("--top-k", type=_number(int, 0), default=0)
    sub.add_argument("--max-tokens", type=_number(int, 1), default=512, help="of an answer (default: %(default)s)")
    sub.add_argument(
        "--max-prompt-length",
        type=_number(int, 1),
        default=2048,
        help="longer prompts are refused (default: %(default)s tokens)",
    )
    sub.add_argument("--system-prompt", metavar="TEXT", help='default: the row\'s own, else ours; "" for none')
    sub.add_argument(
        "--no-thinking", action="store_true", help="open the answer with an empty think block (chat template)"
    )
    sub.add_argument("--seed", type=_number(int, 0), default=0)
    sub.add_argument(
        "--slots",
        type=_number(int, 1, 4096),
        default=32,
        help="answers that are worked on together (default: %(default)s)",
    )
    sub.add_argument(
        "--timeout",
        type=_number(float, 0.001),
        default=600.0,
        help="with --endpoint: seconds of a try, of which there are six (default: %(default)g)",
    )


def _data_input(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--input", default="bundled", metavar="FILE", help='evaluation, sft or rl rows, or "bundled" (default)'
    )


def overrides_of(extra: list[str], options) -> list[str]:
    """--config.KEY=VALUE and --config.KEY VALUE -> ["KEY=VALUE"]; anything else is refused."""
    found, rest = [], list(extra)
    while rest:
        word = rest.pop(0)
        if options.command != "train" or not word.startswith("--config."):
            raise InputError(f"unknown argument {word!r}; see thoth {options.command} --help")
        word = word.removeprefix("--config.")
        if "=" not in word and rest and not rest[0].startswith("--"):
            word = f"{word}={rest.pop(0)}"
        found.append(word)
    return found
