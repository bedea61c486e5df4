"""The `thoth` command: what each subcommand does. Its arguments are in cli_parser.py."""

import contextlib
import ctypes
import functools
import json
import logging
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from thoth_jax import config as configuration
from thoth_jax.cli_parser import overrides_of, parser_of_commands
from thoth_jax.errors import InputError
from thoth_jax.plugins import user_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
      Its exit code: 0 done, 1 the numbers of a run are not finite, 2 bad input, configuration or user code, 75 stopped
      by a signal with everything saved.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = parser_of_commands()
    options, extra = parser.parse_known_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        overrides = overrides_of(extra, options)
        _keep_freed_memory()
        _start_logging()
        return _COMMANDS[options.run](options, overrides)
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

    code = quickstart(options.out, options.seed)
    _report_of(options.out)
    return code


def _train(options, overrides) -> int:
    if options.keys:
        print(configuration.describe(options.keys))
        return 0
    if options.skip_bad:
        overrides = [*overrides, "task_args.skip_bad=true"]
    config = configuration.load(options.config, overrides)  # a typo is answered before jax has started

    from thoth_jax.sharding import distributed_start, is_leader
    from thoth_jax.train.loop import dry_run, train

    distributed_start()
    if options.dry_run:
        print(dry_run(config))
        return 0
    code = train(config, allow_config_change=options.allow_config_change)
    if is_leader():
        _report_of(configuration.run_dir_of(config))
    return code


def _report_of(directory: str) -> None:
    """DIRECTORY/report.html; a fault in it must not make a finished run look failed."""
    from thoth_jax.report import write_report

    try:
        write_report([directory])
    except Exception as error:
        logging.getLogger("thoth_jax").warning("%s: no report: %s", directory, error, exc_info=True)


def _report(options, _overrides) -> int:
    from thoth_jax.report import write_report

    print(write_report(options.runs, options.out))
    return 0


def _how_to_answer(options):
    from thoth_jax.generate import GenerateOptions

    return GenerateOptions(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_tokens=options.max_tokens,
        max_prompt_length=options.max_prompt_length,
        seed=options.seed,
        system_prompt=options.system_prompt,
        enable_thinking=not options.no_thinking,
        slots=options.slots,
        timeout=options.timeout,
    )


def _generate(options, _overrides) -> int:
    if options.input and not options.output:
        raise InputError("--input needs --output FILE")
    if options.output and not options.input:
        raise InputError("--output is for the answers to --input FILE; the answer to --prompt goes to standard output")
    if not (options.model or options.endpoint):
        raise InputError("needs --model DIR, or --endpoint URL")
    from thoth_jax.generate import backend_for, generate_file, generate_one

    how = _how_to_answer(options)
    if options.prompt is not None:
        backend = backend_for(options.model, options.endpoint, how)
        generate_one(backend, options.prompt, how, lambda piece: print(piece, end="", flush=True))
        print()
    else:
        make = functools.partial(backend_for, options.model, options.endpoint, how)
        generate_file(make, options.input, options.output, how, options.skip_bad)
    return 0


def _score(options, _overrides) -> int:
    from thoth_jax.evaluation.files import score_file

    return _judge(options, functools.partial(score_file, explain=options.explain))


def _evaluate(options, _overrides) -> int:
    from thoth_jax.evaluation.files import evaluate_file

    return _judge(options, functools.partial(evaluate_file, lexical=options.lexical))


def _bench(options, _overrides) -> int:
    if options.what == "score":
        from thoth_jax.bench.score import bench_score

        found = bench_score(options.pairs, options.repeats, options.seed)
    elif options.what == "train":
        from thoth_jax.bench.train import bench_train

        found = bench_train(
            options.peer_python, repeats=options.repeats, seed=options.seed, allocator=options.allocator
        )
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
    asked = bool(options.model or options.endpoint)
    if asked and options.input:
        raise InputError("--input holds answers already; leave it out, or --model and --endpoint")
    if options.answers and not asked:
        raise InputError("--answers is for the answers of --model or --endpoint; files of answers come with --input")
    with contextlib.ExitStack() as stack:
        answers = options.input
        if asked:
            from thoth_jax.generate import backend_for, generate_file

            answers = options.answers or str(
                pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()), "answers.jsonl")
            )
            how = _how_to_answer(options)
            make = functools.partial(backend_for, options.model, options.endpoint, how)
            generate_file(make, gold, answers, how, options.skip_bad)
        rows, summary = judge(gold, answers, skip_bad=options.skip_bad)
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


_COMMANDS = {
    "quickstart": _quickstart,
    "train": _train,
    "generate": _generate,
    "score": _score,
    "evaluate": _evaluate,
    "data show": _data_show,
    "data stats": _data_stats,
    "data build": _data_build,
    "report": _report,
    "convert": _convert,
    "bench": _bench,
}


if __name__ == "__main__":
    sys.exit(main())
