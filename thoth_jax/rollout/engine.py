"""The rollout engine: groups of samples from prompts, with continuous batching over fixed slots.

Each prompt is read once. Its G samples are decoded in slots (rows of a fixed-size state), a chunk of steps at a time;
between chunks finished rows are retired, waiting samples take their slots, and finished groups are handed out.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import flax.struct
import jax
import numpy as np
from jax.sharding import Mesh

from thoth_jax.errors import InputError
from thoth_jax.models.decode import Cache
from thoth_jax.models.qwen import Params, QwenConfig
from thoth_jax.rollout import decoding
from thoth_jax.rollout.sampling import Sampling
from thoth_jax.sharding import RULES, fetch, use_mesh

_SMALLEST_BUCKET = 16  # tokens
_PREFILL_TOKENS = 8192  # of one prefill, padding included; bounds its activations
_MOST_SLOTS = 256  # where the caller leaves the number open

_JITTED = {
    "lay_out": jax.jit(decoding.lay_out, static_argnames="config"),
    "empty_slots": jax.jit(decoding.empty_slots, static_argnames=("config", "batch", "length")),
    "read_prompts": jax.jit(decoding.read_prompts, static_argnames="config"),
    "admit": jax.jit(decoding.admit, donate_argnames="slots"),
    "decode_chunk": jax.jit(
        decoding.decode_chunk, static_argnames=("config", "sampling", "steps", "window"), donate_argnames="slots"
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
    return min(size, -(-largest // _SMALLEST_BUCKET) * _SMALLEST_BUCKET)


class Engine:
    """Samples completions; used by training, evaluation and generation alike.

    The number of compilations is bounded by the number of buckets: prompt lengths, prompts per prefill, rows filled
    together and cache lengths are powers of two.
    """

    def __init__(
        self,
        config: QwenConfig,
        mesh: Mesh | None,
        *,
        max_prompt_length: int,
        max_completion_length: int,
        slots: int | None = None,
        chunk: int = 16,
    ):
        """Set up; nothing is compiled or allocated yet.

        Args:
          config: the policy's.
          mesh: rows are split over its data and fsdp axes; None: the default device.
          max_prompt_length: tokens; longer prompts are refused.
          max_completion_length: tokens, T of the results.
          slots: samples decoded together, rounded up to the mesh; None: all of a call, at most 256.
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

        Raises:
          InputError: (at the call) a prompt is empty, too long or holds an id outside of the vocabulary; group_size
            or max_tokens is out of range.
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
        sampling = dataclasses.replace(sampling, max_tokens=None)  # `limit` is data, it need not compile anew
        return self._run(
            params, prompts, group_size, sampling, limit, key, lora, should_stop or (lambda: False), noise_ids
        )

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

    def _slots_for(self, samples: int) -> int:
        shards = 1 if self.mesh is None else int(np.prod([self.mesh.shape[axis] for axis in RULES["batch"]]))
        wanted = self._fixed_slots
        if wanted is None:
            wanted = -(-min(samples, _MOST_SLOTS) // 8) * 8  # in eights, so that few sizes are compiled
        return -(-wanted // shards) * shards

    def _run(self, params, prompts, group_size, sampling, limit, key, lora, should_stop, noise_ids) -> Iterator[Group]:
        if not prompts:
            return
        batch = self._slots_for(len(prompts) * group_size)
        room = bucket(max(map(len, prompts)), self.max_prompt_length) + self.max_completion_length
        room = -(-room // _SMALLEST_BUCKET) * _SMALLEST_BUCKET
        weights = self._call("lay_out", params, lora, config=self.config)
        slots = self._call("empty_slots", config=self.config, batch=batch, length=room)
        waiting = collections.deque((prompt, sample) for prompt in range(len(prompts)) for sample in range(group_size))
        host = _Host(batch, self.max_completion_length, group_size)
        prefilled = _Prefilled()
        while (waiting or host.working) and not should_stop():
            while waiting and host.free:
                if waiting[0][0] not in prefilled.rows:
                    count = -(-len(host.free) // group_size)
                    prefilled = self._read(params, lora, prompts, waiting[0][0], count)
                slots = self._admit(slots, prefilled, prompts, waiting, host, limit, noise_ids)
            window = min(bucket(host.furthest() + self.chunk, room), room)
            slots, tokens, logprobs = self._call(
                "decode_chunk",
                *weights,
                slots,
                key,
                config=self.config,
                sampling=sampling,
                steps=self.chunk,
                window=window,
            )
            yield from host.collect(
                *fetch((tokens, logprobs, slots.count, slots.remaining, slots.token)), sampling.stop_ids
            )

    def _read(self, params, lora, prompts, first: int, count: int) -> "_Prefilled":
        """Prefill up to `count` prompts from number `first` on."""
        longest = bucket(len(prompts[first]), self.max_prompt_length)
        chosen = [first]
        for index in range(first + 1, min(first + count, len(prompts))):
            longer = max(longest, bucket(len(prompts[index]), self.max_prompt_length))
            if longer * _power_of_two(len(chosen) + 1) > _PREFILL_TOKENS:
                break
            longest = longer
            chosen.append(index)
        tokens = np.zeros((_power_of_two(len(chosen)), longest), np.int32)
        lengths = np.ones(len(tokens), np.int32)
        for row, index in enumerate(chosen):
            lengths[row] = len(prompts[index])
            tokens[row, : lengths[row]] = prompts[index]
        cache = self._call("read_prompts", params, lora, tokens, lengths, config=self.config)
        return _Prefilled(cache, {index: row for row, index in enumerate(chosen)})

    def _admit(self, slots, prefilled: "_Prefilled", prompts, waiting, host: "_Host", limit: int, noise_ids):
        """Put waiting samples of the prefilled prompts into free slots."""
        taken = []
        while waiting and host.free and waiting[0][0] in prefilled.rows:
            prompt, sample = waiting.popleft()
            row = host.start(prompt, sample, len(prompts[prompt]))
            ids = prompts[prompt]
            taken.append((row, prefilled.rows[prompt], ids[-1], len(ids) - 1, limit, noise_ids[prompt], sample))
        size = _power_of_two(len(taken))
        # Padding: slots beyond the last one, all different, where nothing is written.
        taken += [(host.batch + number, 0, 0, 0, 0, 0, 0) for number in range(size - len(taken))]
        columns = np.array(taken, np.int32).T.copy()
        return self._call("admit", slots, prefilled.cache, *columns)


@dataclasses.dataclass
class _Prefilled:
    """Keys and values of some prompts: {prompt index: row of the cache}."""

    cache: Cache | None = None
    rows: dict[int, int] = dataclasses.field(default_factory=dict)


class _Host:
    """What the host knows of the slots, and the samples under way."""

    def __init__(self, batch: int, length: int, group_size: int):
        self.batch, self.length, self.group_size = batch, length, group_size
        self.free = list(range(batch))[::-1]
        self.working: dict[int, tuple[int, int]] = {}  # slot -> (prompt, sample)
        self.position = np.zeros(batch, np.int64)  # where the slot's next token is read
        self.count = np.zeros(batch, np.int64)
        self.groups: dict[int, Group] = {}
        self.missing: dict[int, int] = {}

    def start(self, prompt: int, sample: int, prompt_length: int) -> int:
        """Take a free slot for a sample."""
        row = self.free.pop()
        self.working[row] = (prompt, sample)
        self.position[row], self.count[row] = prompt_length - 1, 0
        if prompt not in self.groups:
            shape = (self.group_size, self.length)
            self.groups[prompt] = Group(
                prompt, np.zeros(shape, np.int32), np.zeros(self.group_size, np.int32), np.zeros(shape, np.float32), ()
            )
            self.missing[prompt] = self.group_size
        return row

    def furthest(self) -> int:
        """Positions that the longest working row uses."""
        return int(max(self.position[row] for row in self.working)) + 1

    def collect(self, tokens, logprobs, count, remaining, newest, stop_ids) -> Iterator[Group]:
        """Take over a chunk's results ([steps, B], [steps, B], [B], [B], [B]); yield the groups that it completed."""
        for row, (prompt, sample) in list(self.working.items()):
            group, old, new = self.groups[prompt], self.count[row], count[row]
            group.tokens[sample, old:new] = tokens[: new - old, row]
            group.logprobs[sample, old:new] = logprobs[: new - old, row]
            group.lengths[sample] = new
            self.position[row] += new - old
            self.count[row] = new
            if remaining[row]:
                continue
            del self.working[row]
            self.free.append(row)
            self.missing[prompt] -= 1
            if not self.missing[prompt]:
                del self.groups[prompt], self.missing[prompt]
                last = group.tokens[np.arange(self.group_size), group.lengths - 1]
                reasons = tuple("stop" if token in stop_ids else "length" for token in last.tolist())
                yield group.replace(finish_reason=reasons)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
