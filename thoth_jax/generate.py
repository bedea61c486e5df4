"""`thoth generate`: a policy, or a served model, answers one question or the rows of a file."""

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
from etils import epath
from tqdm import tqdm

from thoth_jax.errors import InputError
from thoth_jax.protocol import prompts
from thoth_jax.protocol.schema import ProtocolItem, Row, item_of, read_rows, row_id
from thoth_jax.rollout import Answer, Endpoint, EndpointOptions, Engine, RolloutBackend, Sampling
from thoth_jax.sharding import make_mesh, use_mesh
from thoth_jax.train.build import load_weights
from thoth_jax.train.sampling import completion_of, json_line

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GenerateOptions:
    """How to answer.

    temperature: 0 is greedy. top_p, top_k: 1 and 0 are off. max_tokens: of an answer. max_prompt_length: longer ones
    are refused. system_prompt: None is the row's own or ours, "" none. enable_thinking: as in training. slots: answers
    that are worked on together. timeout: seconds that a served model may take for one.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    max_prompt_length: int = 2048
    seed: int = 0
    system_prompt: str | None = None
    enable_thinking: bool = True
    slots: int = 32
    timeout: float = 600.0


class Policy:
    """A loaded policy as a `RolloutBackend`."""

    def __init__(self, path: str, options: GenerateOptions):
        self._mesh = make_mesh()
        self.model, self._params, self.tokenizer = load_weights(path, self._mesh)
        if self.tokenizer is None:
            raise InputError(f"{path}: no tokenizer beside the weights")
        self.model = self.model.replace(valid_vocab_size=len(self.tokenizer))
        self.options = options

    def prepare(self, messages: Sequence[dict], where: str) -> list[int]:
        """Prompt tokens of a chat.

        Raises:
          InputError: over max_prompt_length.
        """
        ids = self.tokenizer.encode_prompt(messages, enable_thinking=self.options.enable_thinking)
        if len(ids) > self.options.max_prompt_length:
            raise InputError(
                f"{where}: the prompt has {len(ids)} tokens, over --max-prompt-length {self.options.max_prompt_length}"
            )
        return ids

    def answers(
        self,
        prepared: Sequence[list[int]],
        numbers: Sequence[int],
        watch: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, Answer]]:
        """See `RolloutBackend`."""
        options = self.options
        if not prepared:
            return
        engine = Engine(
            self.model,
            self._mesh,
            max_prompt_length=max(map(len, prepared)),
            max_completion_length=options.max_tokens,
            slots=min(options.slots, len(prepared)),
        )
        sampling = Sampling(
            options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            max_tokens=options.max_tokens,
            stop_ids=self.tokenizer.stop_ids,
        )

        def show(prompt, _, tokens):
            watch(prompt, completion_of(self.tokenizer, tokens, "length").text)

        with use_mesh(self._mesh):
            for group in engine.stream(
                self._params,
                prepared,
                1,
                sampling,
                jax.random.key(options.seed),
                noise_ids=numbers,
                watch=None if watch is None else show,
            ):
                tokens, reason = group.tokens[0][: group.lengths[0]], group.finish_reason[0]
                yield group.index, Answer(completion_of(self.tokenizer, tokens, reason).text, reason)


def backend_for(model: str | None, endpoint: str | None, options: GenerateOptions) -> RolloutBackend:
    """The policy in directory `model`, or the model of that name (None: the first) that `endpoint` serves."""
    if endpoint is None:
        if model is None:
            raise InputError("needs --model DIR, or --endpoint URL")
        return Policy(model, options)
    how = EndpointOptions(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_tokens=options.max_tokens,
        seed=options.seed,
        timeout=options.timeout,
        parallel=options.slots,
        enable_thinking=options.enable_thinking,
    )
    return Endpoint(endpoint, model, how)


def generate_one(
    backend: RolloutBackend, question: str, options: GenerateOptions, show: Callable[[str], None] | None = None
) -> str:
    """The answer to one question; `show` is given each new piece of it."""
    prepared = backend.prepare(_messages(ProtocolItem("prompt", question), options), "--prompt")
    shown = ""

    def watch(_, text: str) -> None:
        nonlocal shown
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # half of a character, so far
        if show is not None and text.startswith(shown):
            show(text[len(shown) :])
            shown = text

    [(_, answer)] = backend.answers([prepared], [0], watch)
    watch(0, answer.text)
    return answer.text


def generate_file(
    backend: Callable[[], RolloutBackend],
    input_path: str,
    output_path: str,
    options: GenerateOptions,
    skip_bad: bool = False,
) -> int:
    """Answer every row of a file that has no answer in the output yet; rows {"id", "output"} are appended.

    A row is written as soon as it is answered, so that the order of the output is not that of the input, and a killed
    run loses only what was under way.

    Args:
      backend: makes the one that answers, once the files have been checked.
      input_path: rows {"id", "prompt"}, or gold rows of any format.
      output_path: JSONL; a last line cut off by a crash is removed.

    Returns:
      The number of rows answered now.

    Raises:
      InputError: a bad row, a prompt that is too long, an id that occurs twice; no answer from a served model.
    """
    if epath.Path(output_path).expanduser().resolve() == epath.Path(input_path).expanduser().resolve():
        raise InputError(f"--output {output_path}: it is the input file")
    chats = _read_chats(input_path, options, skip_bad)
    done = _answered(output_path)
    todo = [chat for chat in chats if chat.id not in done]
    answered = len(chats) - len(todo)
    if not todo:
        logger.info("0 rows to answer, %d answered before", answered)
        return 0
    answerer, prepared, kept = backend(), [], []
    for chat in todo:
        try:
            prepared.append(answerer.prepare(chat.messages, chat.where))
            kept.append(chat)
        except InputError as error:
            if not skip_bad:
                raise
            logger.warning("skipped: %s", error)
    logger.info("%d rows to answer, %d answered before", len(kept), answered)
    with (
        epath.Path(output_path).open("a") as file,
        tqdm(total=len(kept), desc="generate", unit="row", file=sys.stderr) as bar,
    ):
        # Noise is keyed by the row's place in the file: a resumed run gives the answers of an uninterrupted one.
        for index, answer in answerer.answers(prepared, [chat.index for chat in kept]):
            file.write(json_line({"id": kept[index].id, "output": answer.text}))
            file.flush()
            bar.update(1)
    return len(kept)


def _messages(item: ProtocolItem, options: GenerateOptions) -> list[dict]:
    turns = prompts.messages(item)
    if options.system_prompt is None:
        return turns
    user = [turn for turn in turns if turn["role"] != "system"]
    return [{"role": "system", "content": options.system_prompt}, *user] if options.system_prompt else user


class _Chat(NamedTuple):
    """A row to answer: `index` counts the file's rows from 0, `where` names file and line."""

    index: int
    id: str
    messages: list[dict]
    where: str


def _read_chats(path: str, options: GenerateOptions, skip_bad: bool) -> list[_Chat]:
    rows, bad = read_rows(path, skip_bad)
    prompted = any("prompt" in row.data for row in rows)
    bad, chats, lines = list(bad), [], {}
    for row in rows:
        where = f"{path}:{row.line}"
        try:
            item = _prompted(row, where) if prompted else item_of(row, where)
            if item.id in lines:
                raise InputError(
                    f"{where}: field 'id': {item.id!r} is also the id of line {lines[item.id]}; ids name output rows"
                )
        except InputError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
            continue
        lines[item.id] = row.line
        chats.append(_Chat(row.index, item.id, _messages(item, options), where))
    if bad:
        logger.warning("%s: %d bad rows skipped:\n  %s", path, len(bad), "\n  ".join(bad))
    return chats


def _prompted(row: Row, where: str) -> ProtocolItem:
    """A row {"id", "prompt"}."""
    text = row.data.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: field 'prompt' must be a text that is not blank")
    return ProtocolItem(row_id(row, where), text)


def _answered(path: str) -> set[str]:
    """Ids in the output file; an incomplete last line is cut off, another kind of file is left alone.

    Raises:
      InputError: the file holds something else than rows {"id", "output"}.
    """
    file = epath.Path(path)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        return set()
    *whole, rest = file.read_bytes().split(b"\n")
    done = set()
    for number, line in enumerate(whole, 1):
        if line.strip():
            identity = _row_id(line)
            if identity is None:
                raise InputError(
                    f'{path}:{number}: not a row {{"id", "output"}}; --output appends to files of its own only'
                )
            done.add(identity)
    if rest and _row_id(rest) is not None:
        file.write_bytes(b"\n".join([*whole, rest, b""]))
        done.add(_row_id(rest))
    elif rest:
        if not rest.startswith(b'{"id": ') or _is_json(rest):
            raise InputError(
                f'{path}:{len(whole) + 1}: not a row {{"id", "output"}}; --output appends to files of its own only'
            )
        logger.warning("%s: the last line was cut off, it is answered anew", path)
        file.write_bytes(b"\n".join([*whole, b""]) if whole else b"")
    return done


def _row_id(line: bytes) -> str | None:
    """The id of a row {"id", "output"}, None for anything else."""
    if not _is_json(line):
        return None
    row = json.loads(line)
    return str(row["id"]) if isinstance(row, dict) and {"id", "output"} <= row.keys() else None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
