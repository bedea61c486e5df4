"""The `thoth` command."""

import argparse
import ctypes
import functools
import importlib.metadata
import json
import logging
import os
import sys
from collections.abc import Sequence

from thoth_jax import config as configuration
from thoth_jax.errors import InputError
from thoth_jax.plugins import user_error

_EXAMPLES = {
    "quickstart": "thoth quickstart --out runs/quickstart",
    "train": "thoth train --config.stage=sft --config.batch_size=2 --config.num_steps=5 --config.run_dir=runs/try",
    "generate": 'thoth generate --model runs/try --prompt "How is plasmid DNA released from E. coli?" --max-tokens 64',
    "score": "thoth score --gold bundled",
    "evaluate": "thoth evaluate --gold bundled --json",
    "data": "thoth data show --type scaling",
    "data show": "thoth data show --type scaling --split test --number 2",
    "data stats": "thoth data stats",
    "data build": "thoth data build --source bundled --out runs/corpus",
    "convert": "thoth convert --model runs/quickstart --to hf --out models/quickstart",
    "bench": "thoth bench score --pairs 1024 --repeats 3",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
      Its exit code: 0 done, 1 the numbers of a run are not finite, 2 bad input, configuration or user code, 75 stopped
      by a signal with everything saved.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options, extra = parser.parse_known_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        overrides = _overrides(extra, options)
        _keep_freed_memory()
        _start_logging()
        return options.run(options, overrides)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has left
        return 0
    except Exception as error:
        message, code = _explained(error)
        if message is None:
            raise
        print(f"thoth {options.command}: {message}", file=sys.stderr)
        return code


def _explained(error: Exception) -> tuple[str | None, int]:
    """One line and the exit code for what a user can mend; (None, 1) for a fault of ours, which shows its traceback."""
    if isinstance(error, InputError):
        return str(error), 2
    if message := user_error(error):
        return message, 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, KeyError) and str(error.args[0]).endswith("://"):  # etils.epath, of any path
        return f"{error.args[0]}... is no path that can be read; use a local one, gs:// or s3://", 2
    return (str(error), 1) if isinstance(error, FloatingPointError) else (None, 1)


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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="thoth", description="Post-training of reasoning models on JAX: protocols and SCORE.")
    parser.add_argument("--version", action="version", version=f"thoth-jax {importlib.metadata.version('thoth-jax')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name, run, summary, group=commands):
        example = f"example:\n  {_EXAMPLES[name]}"
        sub = group.add_parser(
            name.split()[-1],
            help=summary,
            description=summary,
            epilog=example,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    sub = command(
        "quickstart",
        _quickstart,
        "all three stages with a tiny policy on the bundled items, about three minutes on two cores",
    )
    sub.add_argument(
        "--out", default="runs/quickstart", metavar="DIR", help="directory of the runs (default: %(default)s)"
    )
    sub.add_argument("--seed", type=_number(int, 0), default=0)

    sub = command("train", _train, "run one stage: pretrain, sft or rl; the same command again continues it")
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

    sub = command("generate", _generate, "answer one prompt, or every row of a file")
    sub.add_argument(
        "--model", required=True, metavar="DIR", help="run directory, quickstart directory or HF model directory"
    )
    source = sub.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one question; the answer goes to standard output")
    source.add_argument("--input", metavar="FILE", help='rows {"id", "prompt"} or gold rows')
    sub.add_argument(
        "--output",
        metavar="FILE",
        help='with --input: rows {"id", "output"} are appended; rows that are there already are skipped',
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
    sub.add_argument("--skip-bad", action="store_true", help="count and list malformed rows and go on without them")

    for name, run, summary in (
        ("score", _score, "SCORE and its parts of answers against gold protocols"),
        ("evaluate", _evaluate, "the metrics of SciRecipe-Eval, overall, by level and by type"),
    ):
        sub = command(name, run, summary)
        sub.add_argument(
            "--gold", required=True, metavar="FILE", help='gold rows: evaluation, sft or rl format; or "bundled"'
        )
        sub.add_argument(
            "--input",
            metavar="FILE",
            help='rows {"id", "output"}; without it the gold answers are judged against themselves',
        )
        sub.add_argument("--output", metavar="FILE", help="write one JSON row per answer")
        if name == "evaluate":
            sub.add_argument(
                "--lexical", action="store_true", help="BLEU, ROUGE, METEOR, ... of the orc too (extra: eval)"
            )
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        sub.add_argument("--skip-bad", action="store_true", help="count and list malformed rows and go on without them")

    sub = command("data", None, "look at data files, and build the bundled corpus from its sources")
    group = sub.add_subparsers(dest="what", metavar="WHAT", required=True)
    sub = command("data show", _data_show, "print items so that they can be read", group)
    sub.add_argument("id", nargs="?", default="", help="of one item; without it the first that fits")
    _data_input(sub)
    sub.add_argument("--type", default="", help="only items of this type")
    sub.add_argument("--split", default="", help="only items of this split")
    sub.add_argument("--number", type=_number(int, 1), default=1, help="how many (default: %(default)s)")
    sub = command(
        "data stats", _data_stats, "count items by type, split and subfield, and measure them in tokens", group
    )
    _data_input(sub)
    sub.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="HF directory, tokenizer.json or SentencePiece .model (default: the bundled)",
    )
    sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    sub = command(
        "data build", _data_build, "build items, records, drills' sources and tokenizer from YAML files", group
    )
    sub.add_argument(
        "--source", default="bundled", metavar="DIR", help='directory of YAML files, or "bundled" (default)'
    )
    sub.add_argument("--out", default="runs/corpus", metavar="DIR", help="where to (default: %(default)s)")

    sub = command("convert", _convert, "write a run or a model as a Hugging Face model, or adapters for PEFT")
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

    sub = command("bench", _bench, "measure beside a peer in the same run; prints one JSON object")
    sub.add_argument(
        "what",
        choices=("score", "rollout"),
        help="score: text to SCORE beside the published evaluator's algorithm; rollout: the engine beside peers",
    )
    sub.add_argument(
        "--pairs", type=_number(int, 8), default=1024, help="score: answers of a repeat (default: %(default)s)"
    )
    sub.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PATH",
        help="rollout: Python that has google-tunix, or transformers and torch (see launch/peers.sh; repeatable)",
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


def _data_input(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--input", default="bundled", metavar="FILE", help='evaluation, sft or rl rows, or "bundled" (default)'
    )


def _overrides(extra: list[str], options) -> list[str]:
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


def _keep_freed_memory() -> None:
    """Let glibc keep what XLA frees: giving it back and faulting it in again costs half of a training step on CPU.

    Only for processes that we start; importing the package changes nothing. No-op where there is no glibc.
    """
    if os.environ.get("JAX_PLATFORMS", "cpu") not in ("", "cpu"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # malloc.h
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 2**28)


def _start_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("thoth_jax").setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports every option and every step of every save


def _quickstart(options, _overrides) -> int:
    from thoth_jax.quickstart import quickstart  # these import jax, which --help need not wait for

    return quickstart(options.out, options.seed)


def _train(options, overrides) -> int:
    if options.keys:
        print(configuration.describe(options.keys))
        return 0
    if options.skip_bad:
        overrides = [*overrides, "task_args.skip_bad=true"]
    config = configuration.load(options.config, overrides)  # a typo is answered before jax has started

    from thoth_jax.sharding import distributed_start
    from thoth_jax.train.loop import dry_run, train

    distributed_start()
    if options.dry_run:
        print(dry_run(config))
        return 0
    return train(config, allow_config_change=options.allow_config_change)


def _generate(options, _overrides) -> int:
    from thoth_jax.generate import GenerateOptions, generate_file, generate_one

    if options.input and not options.output:
        raise InputError("--input needs --output FILE")
    if options.output and not options.input:
        raise InputError("--output is for the answers to --input FILE; the answer to --prompt goes to standard output")
    how = GenerateOptions(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_tokens=options.max_tokens,
        max_prompt_length=options.max_prompt_length,
        seed=options.seed,
        system_prompt=options.system_prompt,
        enable_thinking=not options.no_thinking,
    )
    if options.prompt is not None:
        print(generate_one(options.model, options.prompt, how))
    else:
        generate_file(options.model, options.input, options.output, how, options.skip_bad)
    return 0


def _score(options, _overrides) -> int:
    from thoth_jax.evaluation.files import score_file

    return _judge(options, score_file)


def _evaluate(options, _overrides) -> int:
    from thoth_jax.evaluation.files import evaluate_file

    return _judge(options, functools.partial(evaluate_file, lexical=options.lexical))


def _bench(options, _overrides) -> int:
    if options.what == "score":
        from thoth_jax.bench.score import bench_score

        found = bench_score(options.pairs, options.repeats, options.seed)
    else:
        from thoth_jax.bench.rollout import CASES, bench_rollout

        for name in options.case or ():
            if name not in CASES:
                raise InputError(f"--case {name}: must be one of {', '.join(CASES)}")
        found = bench_rollout(
            options.peer_python, options.case or tuple(CASES), options.repeats, options.seed, options.allocator
        )
    text = json.dumps(found, indent=1)
    print(text)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


def _convert(options, _overrides) -> int:
    from thoth_jax.convert import convert, describe

    convert(
        options.model,
        options.out,
        to=options.to,
        adapter=options.adapter,
        merge_adapter=options.merge,
        dtype=options.dtype,
        max_shard_bytes=int(options.max_shard_size * 1024**3),
    )
    print(describe(options.out))
    return 0


def _judge(options, judge) -> int:
    from thoth_jax.data import bundled
    from thoth_jax.evaluation.files import table, write_jsonl

    gold = str(bundled.path("items.jsonl")) if options.gold == "bundled" else options.gold
    rows, summary = judge(gold, options.input, skip_bad=options.skip_bad)
    if options.output:
        write_jsonl(options.output, rows)
    print(json.dumps(summary) if options.json else table(summary))
    return 0


def _rows_and_items(name: str):
    from thoth_jax.data import bundled
    from thoth_jax.protocol.schema import item_of, read_rows

    path = str(bundled.path("items.jsonl")) if name == "bundled" else name
    rows = read_rows(path).rows
    return rows, [item_of(row, f"{path}:{row.line}") for row in rows]


def _data_show(options, _overrides) -> int:
    from thoth_jax.data.describe import pick, show

    rows, items = _rows_and_items(options.input)
    item_of_row = dict(zip((row.index for row in rows), items, strict=True))
    chosen = pick(rows, id=options.id, type=options.type, split=options.split, number=options.number)
    print("\n\n".join(show(item_of_row[row.index], row) for row in chosen))
    return 0


def _data_stats(options, _overrides) -> int:
    from thoth_jax.data import bundled
    from thoth_jax.data.describe import stats, stats_table
    from thoth_jax.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer or str(bundled.path("tokenizer.model")))
    found = stats(*_rows_and_items(options.input), tokenizer)
    print(json.dumps(found) if options.json else stats_table(found))
    return 0


def _data_build(options, _overrides) -> int:
    from thoth_jax.data import bundled
    from thoth_jax.data.builder.bundle import build_bundle, compared

    own = options.source == "bundled"
    build_bundle(str(bundled.source_directory()) if own else options.source, options.out)
    print(compared(options.out, own))
    return 0


if __name__ == "__main__":
    sys.exit(main())
