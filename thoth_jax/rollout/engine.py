"""The rollout engine: groups of samples from prompts, with continuous batching over fixed slots.

Each prompt is read once, and its keys and values are stored once for all of its G samples. They are decoded in slots,
blocks of rows of a fixed-size state, a chunk of steps at a time; between chunks finished rows are retired, waiting
samples take their slots, and finished groups are handed out.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import flax.struct
import jax
import numpy as np
from jax.sharding import Mesh

from thoth_jax.errors import InputError
from thoth_jax.models.qwen import Params, QwenConfig
from thoth_jax.rollout import decoding
from thoth_jax.rollout.sampling import Sampling
from thoth_jax.sharding import RULES, fetch, use_mesh

_SMALLEST_BUCKET = 16  # tokens
_SMALLEST_RING = 64  # columns; each doubling of it compiles a decode program
_PREFILL_TOKENS = 8192  # of one prefill, padding included; bounds its activations
_ROW_COST = 256  # what a row costs besides its cache, in columns of it
_LEAST_ROWS = 16  # so few are not made fewer: the program would take longer to compile than it saves
_PARTS = (2, 8)  # of the slots that are gone on with when few samples are left; each compiles a decode program
_WORTH_SHRINKING = 0.6  # of the present cost
_MOST_SLOTS = 256  # where the caller leaves the number open

_JITTED = {
    "lay_out": jax.jit(decoding.lay_out, static_argnames="config"),
    "empty_slots": jax.jit(decoding.empty_slots, static_argnames=("config", "blocks", "width", "prompt_room", "ring")),
    "grown": jax.jit(decoding.grown, static_argnames=("ring", "kind")),
    "taken": jax.jit(decoding.taken),
    "only": jax.jit(decoding.only),
    "copy_prompts": jax.jit(decoding.copy_prompts, donate_argnames="slots"),
    "read_prompts": jax.jit(decoding.read_prompts, static_argnames="config"),
    "place_prompts": jax.jit(decoding.place_prompts, donate_argnames="slots"),
    "start_rows": jax.jit(decoding.start_rows, donate_argnames="slots"),
    "decode_chunk": jax.jit(
        decoding.decode_chunk, static_argnames=("config", "sampling", "steps"), donate_argnames="slots"
    ),
}


@flax.struct.dataclass
class Group:
    """The G samples of one prompt, on the host. T is the engine's max_completion_length.

    index:         position of the prompt in the list.
    tokens:        [G, T] int32, 0 from lengths on; the stop token is included.
    lengths:       [G] int32, tokens of each sample, the stop token included.
    logprobs:      [G, T] float32, of each token under the temperature's full distribution; 0 from lengths on.
    finish_reason: G times "stop" (a stop token was sampled) or "length" (cut off).
    """

    index: int = flax.struct.field(pytree_node=False)
    tokens: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray
    finish_reason: tuple[str, ...] = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Rollouts:
    """All groups, in the order of the prompts: tokens [P, G, T], lengths [P, G], logprobs [P, G, T], see `Group`."""

    tokens: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray
    finish_reason: tuple[tuple[str, ...], ...] = flax.struct.field(pytree_node=False)


def bucket(length: int, largest: int) -> int:
    """The padded length for `length` tokens: a power of two from 16 on, at most `largest` rounded up to 16s."""
    size = _SMALLEST_BUCKET
    while size < length:
        size *= 2
    return min(size, _rounded(largest, _SMALLEST_BUCKET))


class Engine:
    """Samples completions; used by training, evaluation and generation alike.

    The number of compilations is bounded by the number of buckets: prompt lengths, prompts per prefill, rows started
    together and lengths of the ring are powers of two.
    """

    def __init__(
        self,
        config: QwenConfig,
        mesh: Mesh | None,
        *,
        max_prompt_length: int,
        max_completion_length: int,
        slots: int | None = None,
        chunk: int = 8,
    ):
        """Set up; nothing is compiled or allocated yet.

        Args:
          config: the policy's.
          mesh: rows are split over its data and fsdp axes; None: the default device.
          max_prompt_length: tokens; longer prompts are refused.
          max_completion_length: tokens, T of the results.
          slots: samples decoded together, rounded up to the mesh and to whole blocks; None: all of a call, at most
            256.
          chunk: decode steps between two looks at what has finished.

        Raises:
          InputError: a size is below 1, or the lengths do not fit the model's positions.
        """
        for name, value in (
            ("max_prompt_length", max_prompt_length),
            ("max_completion_length", max_completion_length),
            ("slots", 1 if slots is None else slots),
            ("chunk", chunk),
        ):
            if value < 1:
                raise InputError(f"{name}={value}: must be at least 1")
        if max_prompt_length + max_completion_length > config.max_position_embeddings:
            raise InputError(
                f"max_prompt_length {max_prompt_length} + max_completion_length {max_completion_length} exceed the"
                f" model's {config.max_position_embeddings} positions"
            )
        self.config, self.mesh, self.chunk = config, mesh, chunk
        self.max_prompt_length, self.max_completion_length = max_prompt_length, max_completion_length
        self._fixed_slots = slots
        self.compilations = 0  # programs compiled for this engine; engines with the same shapes share theirs

    def generate(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        sampling: Sampling,
        key: jax.Array,
        lora=None,
    ) -> Rollouts:
        """All groups of `stream`, collected in the order of the prompts."""
        groups = sorted(self.stream(params, prompts, group_size, sampling, key, lora), key=lambda group: group.index)
        shape = (len(prompts), group_size)
        return Rollouts(
            tokens=np.array([group.tokens for group in groups], np.int32).reshape(*shape, self.max_completion_length),
            lengths=np.array([group.lengths for group in groups], np.int32).reshape(shape),
            logprobs=np.array([group.logprobs for group in groups], np.float32).reshape(
                *shape, self.max_completion_length
            ),
            finish_reason=tuple(group.finish_reason for group in groups),
        )

    def stream(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        sampling: Sampling,
        key: jax.Array,
        lora=None,
        should_stop: Callable[[], bool] | None = None,
        noise_ids: Sequence[int] | None = None,
        limits: Sequence[Sequence[int]] | None = None,
        watch: Callable[[int, int, np.ndarray], None] | None = None,
    ) -> Iterator[Group]:
        """Sample `group_size` completions of each prompt and yield each prompt's group as soon as it is complete.

        The noise of a token is folded from (key, noise id of the prompt, sample index, token position), so that it
        depends neither on the number of slots nor on what is decoded beside it; give every call its own key, or its
        own noise ids.

        Args:
          params: the policy's, as trained; read once at the start.
          prompts: token ids of each.
          group_size: G.
          sampling: see `Sampling`; its max_tokens defaults to max_completion_length.
          key: a typed random key.
          lora: adapter, or None.
          should_stop: polled between chunks; when it returns True the iterator ends, and samples of incomplete groups
            are dropped.
          noise_ids: a number (0 to 2^31 - 1) per prompt that its noise is folded from; None: its index.
          limits: [P][G] at most so many tokens of each sample; None: sampling.max_tokens for all of them.
          watch: called between chunks with (prompt, sample, its tokens so far) of every sample under way.

        Raises:
          InputError: (at the call) a prompt is empty, too long or holds an id outside of the vocabulary; group_size,
            max_tokens or a limit is out of range.
        """
        if group_size < 1:
            raise InputError(f"group_size={group_size}: must be at least 1")
        limit = self.max_completion_length if sampling.max_tokens is None else sampling.max_tokens
        if limit > self.max_completion_length:
            raise InputError(
                f"sampling.max_tokens={limit}: the engine was made for at most {self.max_completion_length} tokens"
            )
        prompts = [self._checked(index, prompt) for index, prompt in enumerate(prompts)]
        noise_ids = range(len(prompts)) if noise_ids is None else noise_ids
        if len(noise_ids) != len(prompts):
            raise InputError(f"noise_ids: {len(noise_ids)} for {len(prompts)} prompts")
        if limits is None:
            limits = np.full((len(prompts), group_size), limit)
        elif np.shape(limits) != (len(prompts), group_size):
            raise InputError(f"limits: shape {np.shape(limits)}, needs one for each of {(len(prompts), group_size)}")
        elif np.size(limits) and not 1 <= np.min(limits) <= np.max(limits) <= limit:
            raise InputError(f"limits: must be in 1..{limit}")
        sampling = dataclasses.replace(sampling, max_tokens=None)  # limits are data, they need not compile anew
        work = _Work(prompts, group_size, sampling, np.asarray(limits), noise_ids)
        return self._run(params, lora, work, key, should_stop or (lambda: False), watch)

    def _checked(self, index: int, prompt: Sequence[int]) -> np.ndarray:
        prompt = np.asarray(prompt, np.int32)
        if prompt.ndim != 1 or not prompt.size:
            raise InputError(f"prompt {index}: empty; a prompt needs at least one token")
        if prompt.size > self.max_prompt_length:
            raise InputError(
                f"prompt {index}: {prompt.size} tokens, longer than max_prompt_length {self.max_prompt_length}"
            )
        if prompt.min() < 0 or prompt.max() >= self.config.vocab_size:
            raise InputError(f"prompt {index}: token ids must be in 0..{self.config.vocab_size - 1}")
        return prompt

    def _call(self, name: str, *args, **kwargs):
        function = _JITTED[name]
        before = function._cache_size()
        with use_mesh(self.mesh):
            result = function(*args, **kwargs)
        self.compilations += function._cache_size() - before
        return result

    @property
    def _shards(self) -> int:
        """Parts that the rows are split into."""
        return 1 if self.mesh is None else int(np.prod([self.mesh.shape[axis] for axis in RULES["batch"]]))

    def _shape_for(self, prompts: int, group_size: int) -> tuple[int, int]:
        """(blocks, rows of a block).

        Where all samples fit at once a block has a row for each sample of its prompt. Where they do not, fewer rows
        take turns: samples differ in length, and rows without a sample wait for the longest of their block.
        """
        shards = self._shards
        wanted = self._fixed_slots or min(prompts * group_size, _MOST_SLOTS)
        width = group_size
        if wanted < prompts * group_size:
            width = min(group_size, max(-(-wanted // prompts), -(-group_size // 4)))
        step = shards if self._fixed_slots else math.lcm(shards, 8 // math.gcd(width, 8))  # so that few are compiled
        return _rounded(_rounded(wanted, width) // width, step), width

    def _run(self, params, lora, work: "_Work", key, should_stop, watch) -> Iterator[Group]:
        if not work.prompts:
            return
        blocks, width = self._shape_for(len(work.prompts), work.group_size)
        room = bucket(max(map(len, work.prompts)) - 1, self.max_prompt_length)
        full = _rounded(self.max_completion_length, _SMALLEST_BUCKET)
        ring = bucket(max(self.chunk, _SMALLEST_RING), full)
        weights = self._call("lay_out", params, lora, config=self.config)
        slots = self._call("empty_slots", config=self.config, blocks=blocks, width=width, prompt_room=room, ring=ring)
        host = _Host(work, blocks, width, self.max_completion_length)
        while host.busy and not should_stop():
            while host.wants_prompts:
                slots = self._read(params, lora, slots, host)
            slots = self._start(slots, host)
            needed = bucket(host.oldest + self.chunk, full)
            if needed > ring:
                slots, ring = self._grow(slots, needed), needed
            slots, tokens, logprobs = self._call(
                "decode_chunk", *weights, slots, key, config=self.config, sampling=work.sampling, steps=self.chunk
            )
            yield from host.collect(*fetch((tokens, logprobs, slots.count, slots.remaining)))
            if watch is not None:
                host.show(watch)
            smaller = host.smaller(ring, room, self._shards)
            if smaller is not None:
                slots = self._shrink(slots, *smaller)

    def _grow(self, slots, ring: int):
        """The state with a ring of `ring` columns."""

        def longer(x, kind):
            new = self._call("grown", x, slots.cursor, ring=ring, kind=kind)
            x.delete()
            return new

        old = slots.seen.shape[1]
        return slots.replace(
            keys=tuple(longer(x, "keys") for x in slots.keys),
            values=tuple(longer(x, "values") for x in slots.values),
            seen=longer(slots.seen, "seen"),
            cursor=jax.numpy.int32(old),
        )

    def _shrink(self, slots, blocks: np.ndarray, rows: np.ndarray, live: np.ndarray):
        """The state of some rows of some blocks, in a new order."""

        def chosen(x, sources):
            new = self._call("taken", x, sources)
            x.delete()
            return new

        by_block = {"prompt_keys", "prompt_values", "prompt_length"}
        fields = {field.name: getattr(slots, field.name) for field in dataclasses.fields(slots)}
        new = {
            name: jax.tree.map(lambda x, name=name: chosen(x, blocks if name in by_block else rows), value)
            for name, value in fields.items()
            if name != "cursor"
        }
        new["remaining"] = self._call("only", new["remaining"], live)
        return slots.replace(**new)

    def _read(self, params, lora, slots, host: "_Host"):
        """Prefill the next prompts, as many as there are free blocks and as fit one call, and place them."""
        prompts, longest, chosen = host.work.prompts, 0, []
        for index in list(host.prompts)[: len(host.free_blocks)]:
            longer = max(longest, bucket(len(prompts[index]), self.max_prompt_length))
            if chosen and longer * _power_of_two(len(chosen) + 1) > _PREFILL_TOKENS:
                break
            longest = longer
            chosen.append(index)
        size = _power_of_two(len(chosen))
        tokens, lengths = np.zeros((size, longest), np.int32), np.ones(size, np.int32)
        # Padding: blocks beyond the last one, all different, where nothing is written.
        blocks = host.blocks + np.arange(size, dtype=np.int32)
        for row, index in enumerate(chosen):
            lengths[row] = len(prompts[index])
            tokens[row, : lengths[row]] = prompts[index]
            blocks[row] = host.take_block(index)
        cache = self._call("read_prompts", params, lora, tokens, lengths, config=self.config)
        return self._call("place_prompts", slots, cache, blocks, lengths - 1)

    def _start(self, slots, host: "_Host"):
        """Put waiting samples into free rows of their prompts' blocks, and of blocks that have nothing else to do."""
        work, taken = host.work, host.start_samples()
        copies = host.share()
        if copies:
            sources, blocks = zip(*_padded(copies, lambda number: (0, host.blocks + number)), strict=True)
            slots = self._call("copy_prompts", slots, np.array(sources, np.int32), np.array(blocks, np.int32))
            taken += host.start_samples()
        if not taken:
            return slots
        columns = [
            (row, work.prompts[prompt][-1], work.limits[prompt, sample], work.noise_ids[prompt], sample)
            for row, prompt, sample in taken
        ]
        slots_number = host.blocks * host.width  # always so many columns: one program
        columns = _padded(columns, lambda number: (slots_number + number, 0, 0, 0, 0), slots_number)
        return self._call("start_rows", slots, *np.array(columns, np.int32).T.copy())


@dataclasses.dataclass(frozen=True)
class _Work:
    """What a call asks for: prompts [P] of ids, limits [P, G] in tokens, noise_ids [P]."""

    prompts: list[np.ndarray]
    group_size: int
    sampling: Sampling
    limits: np.ndarray
    noise_ids: Sequence[int]


class _Host:
    """What the host knows of blocks and rows, and the samples under way."""

    def __init__(self, work: _Work, blocks: int, width: int, length: int):
        self.work, self.blocks, self.width, self._length = work, blocks, width, length
        self.prompts = collections.deque(range(len(work.prompts)))  # not read yet
        self._prompt: list[int | None] = [None] * blocks  # that the block works on
        self._waiting: list[collections.deque[int]] = [collections.deque() for _ in range(blocks)]  # samples of it
        self._rows: list[dict[int, int]] = [{} for _ in range(blocks)]  # row of the block -> sample that it works on
        self._slots = blocks * width
        self._count = np.zeros(blocks * width, np.int64)
        self._groups: dict[int, Group] = {}
        self._missing: dict[int, int] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.prompts or self._missing)

    @property
    def free_blocks(self) -> list[int]:
        """Blocks that work on nothing."""
        return [block for block, prompt in enumerate(self._prompt) if prompt is None]

    @property
    def wants_prompts(self) -> bool:
        """Whether a prompt waits and a block is free for it."""
        return bool(self.prompts and self.free_blocks)

    @property
    def oldest(self) -> int:
        """Columns of the ring that the longest working sample uses."""
        return int(max(self._count[row] for row, _, _ in self._working()))

    def _working(self) -> list[tuple[int, int, int]]:
        """(row, block, sample) of all samples under way."""
        return [
            (block * self.width + row, block, sample)
            for block, rows in enumerate(self._rows)
            for row, sample in rows.items()
        ]

    def take_block(self, prompt: int) -> int:
        """A free block for the next prompt, whose samples then wait in it."""
        if self.prompts.popleft() != prompt:
            raise AssertionError("prompts are taken in order")
        block, shape = self.free_blocks[0], (self.work.group_size, self._length)
        self._prompt[block] = prompt
        self._waiting[block].extend(range(self.work.group_size))
        self._missing[prompt] = self.work.group_size
        self._groups[prompt] = Group(
            prompt, np.zeros(shape, np.int32), np.zeros(shape[0], np.int32), np.zeros(shape, np.float32), ()
        )
        return block

    def start_samples(self) -> list[tuple[int, int, int]]:
        """(row, prompt, sample) of all waiting samples for which their block has a free row."""
        started = []
        for block, waiting in enumerate(self._waiting):
            for row in range(self.width):
                if waiting and row not in self._rows[block]:
                    sample = self._rows[block][row] = waiting.popleft()
                    self._count[block * self.width + row] = 0
                    started.append((block * self.width + row, self._prompt[block], sample))
        return started

    def share(self) -> list[tuple[int, int]]:
        """(block, free block that takes over half of its waiting samples), where no prompt waits for the free one."""
        copies = []
        for free in () if self.prompts else self.free_blocks:
            busiest = max(range(self.blocks), key=lambda block: len(self._waiting[block]))
            waiting = self._waiting[busiest]
            # A block that has just been given samples holds no prompt yet that could be copied.
            if not waiting or busiest in {target for _, target in copies}:
                break
            self._prompt[free] = self._prompt[busiest]
            for _ in range(min(self.width, -(-len(waiting) // 2))):
                self._waiting[free].append(waiting.pop())
            copies.append((busiest, free))
        return copies

    def collect(self, tokens, logprobs, count, remaining) -> Iterator[Group]:
        """Take over a chunk's results ([steps, B], [steps, B], [B], [B]); yield the groups that it completed."""
        for row, block, sample in self._working():
            prompt = self._prompt[block]
            group, old, new = self._groups[prompt], self._count[row], count[row]
            group.tokens[sample, old:new] = tokens[: new - old, row]
            group.logprobs[sample, old:new] = logprobs[: new - old, row]
            group.lengths[sample] = new
            self._count[row] = new
            if remaining[row]:
                continue
            del self._rows[block][row % self.width]
            if not self._rows[block] and not self._waiting[block]:
                self._prompt[block] = None
            self._missing[prompt] -= 1
            if not self._missing[prompt]:
                del self._groups[prompt], self._missing[prompt]
                last = group.tokens[np.arange(self.work.group_size), group.lengths - 1]
                reasons = tuple("stop" if token in self.work.sampling.stop_ids else "length" for token in last.tolist())
                yield group.replace(finish_reason=reasons)

    def show(self, watch: Callable[[int, int, np.ndarray], None]) -> None:
        """Tell `watch` what the samples under way have so far."""
        for row, block, sample in self._working():
            prompt = self._prompt[block]
            watch(prompt, sample, self._groups[prompt].tokens[sample, : self._count[row]])

    def smaller(self, ring: int, room: int, shards: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Once nothing waits any more: fewer blocks for the rows that still work, where that is worth a copy.

        Args:
          ring, room: columns of the ring and of a prompt, what a row and a block cost to read.
          shards: the number of blocks stays a multiple of it.

        Returns:
          (old block of each new one, old row of each new one, [new rows] whether it works), or None.
        """
        if self.prompts or any(self._waiting) or not self.busy or self.blocks * self.width <= _LEAST_ROWS:
            return None

        def cost(blocks, width):
            return blocks * (width * (ring + _ROW_COST) + room)

        counts, choices = [len(rows) for rows in self._rows], []
        for width in {1, -(-self.width // 2), self.width}:
            needed = sum(-(-count // width) for count in counts)
            for part in _PARTS:
                blocks = _rounded(-(-self._slots // part // width), shards)
                if blocks >= needed:
                    choices.append((cost(blocks, width), blocks, width))
        if not choices:
            return None
        least, blocks, width = min(choices)
        if least > _WORTH_SHRINKING * cost(self.blocks, self.width):
            return None
        return self._rearrange(blocks, width)

    def _rearrange(self, blocks: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        parts = [
            (block, list(rows.items())[start : start + width])
            for block, rows in enumerate(self._rows)
            for start in range(0, len(rows), width)
        ]
        block_sources, row_sources = np.zeros(blocks, np.int32), np.zeros(blocks * width, np.int32)
        live = np.zeros(blocks * width, bool)
        prompt, rows = [None] * blocks, [{} for _ in range(blocks)]
        for new, (old, members) in enumerate(parts):
            block_sources[new], prompt[new] = old, self._prompt[old]
            for place, (row, sample) in enumerate(members):
                rows[new][place] = sample
                row_sources[new * width + place] = old * self.width + row
                live[new * width + place] = True
        self._count = self._count[row_sources]
        self._prompt, self._rows, self.blocks, self.width = prompt, rows, blocks, width
        self._waiting = [collections.deque() for _ in range(blocks)]
        return block_sources, row_sources, live


def _padded(rows: list[tuple], filler: Callable[[int], tuple], size: int | None = None) -> list[tuple]:
    """Rows up to `size` (a power of two): `filler(number)` gives those that are missing, where nothing is written."""
    return rows + [filler(number) for number in range((size or _power_of_two(len(rows))) - len(rows))]


def _rounded(number: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
