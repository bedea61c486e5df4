"""The verifier as jit-compiled kernels: verdicts, step scores, outcome, format and coherence of many traces at once.

Text is turned into numbers on the host (`encode`); all that follows is gathers and comparisons on the device.

Shape letters: B traces, D domains of a tool, S steps of its longest domain, L labels of its widest step plus one, T
steps of a trace. Codes: a domain, a step and a label are their places in the tool; a verdict is its place in VERDICTS;
-1 is a missing or unknown one, and a verdict that the labels do not decide.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from thoth_jax.errors import InputError, nearest
from thoth_jax.rewards.encoding import bucket, shard
from vprm_jax.tools import VERDICTS, Domain, Tool, fold, steps_of
from vprm_jax.tools.tables import combinations, enumerate_domain, is_decision_list

# In Tables.effect: the label decides nothing; the step has no label although a rule needs one.
_GO_ON, _STOP = -1, len(VERDICTS)


class Tables(NamedTuple):
    """A tool as arrays.

    Attributes:
      labels: int8 [D, S] number of labels, 0 where a domain has no such step.
      effect: int8 [D, S, L] of decision lists: what a label code plus one decides (the table V).
      otherwise: int8 [D] of decision lists: the verdict where no label decides.
      is_list: bool [D]; the other domains are looked up in `flat`.
      flat: int8 [N] verdicts of every combination of labels, domain after domain.
      start: int32 [D] where a domain begins in `flat`.
      stride: int32 [D, S] what one more in a step's label code adds to the place in `flat`.
    """

    labels: np.ndarray
    effect: np.ndarray
    otherwise: np.ndarray
    is_list: np.ndarray
    flat: np.ndarray
    start: np.ndarray
    stride: np.ndarray


class Encoded(NamedTuple):
    """Traces as int32 codes: domain [B], names [B, T] and labels [B, T] in order of appearance, verdict [B]."""

    domain: np.ndarray
    names: np.ndarray
    labels: np.ndarray
    verdict: np.ndarray


class TraceScores(NamedTuple):
    """What the verifier sees in each trace.

    Attributes:
      names: float32 [B, S], 1 for each gold step whose name is found in order; padding 0.
      labels: float32 [B, S], 1 for each of those whose label is right.
      steps: int32 [B] number of gold steps, T* of the weights.
      outcome: float32 [B], 1 where the stated verdict is the gold one.
      format: float32 [B], as given.
      coherence: float32 [B], 1 where the stated verdict is the one that the trace's own labels imply.
      implied: int32 [B], that verdict's code or -1.
    """

    names: jax.Array
    labels: jax.Array
    steps: jax.Array
    outcome: jax.Array
    format: jax.Array
    coherence: jax.Array
    implied: jax.Array


@functools.lru_cache(maxsize=32)
def tables(tool: Tool) -> Tables:
    """The arrays of a tool, built once; they stay on the host, so that they are constants in any jit."""
    shape = (len(tool.domains), steps_of(tool.domains))
    labels = np.zeros(shape, np.int8)
    for place, domain in enumerate(tool.domains):
        labels[place, : len(domain.steps)] = [len(step.labels) for step in domain.steps]
    effect = np.full((*shape, int(labels.max()) + 1), _GO_ON, np.int8)
    otherwise, is_list = np.full(shape[0], -1, np.int8), np.zeros(shape[0], bool)
    start, stride = np.zeros(shape[0], np.int32), np.zeros(shape, np.int32)
    flat = [np.full(1, -1, np.int8)]
    for place, domain in enumerate(tool.domains):
        is_list[place] = is_decision_list(domain)
        if is_list[place]:
            part = domain.parts[0]
            otherwise[place] = -1 if part.otherwise is None else VERDICTS.index(part.otherwise)
            for rule in part.rules:
                number = domain.index[fold(rule.condition.step)]
                effect[place, number, 0] = _STOP
                for label in rule.condition.labels:
                    code = domain.steps[number].labels.index(label) + 1
                    if effect[place, number, code] == _GO_ON:  # an earlier rule comes first
                        effect[place, number, code] = VERDICTS.index(rule.verdict)
        else:
            start[place] = sum(part.size for part in flat)
            stride[place, : len(domain.steps)] = _strides(domain)
            flat.append(enumerate_domain(domain).verdicts)
    return Tables(labels, effect, otherwise, is_list, np.concatenate(flat), start, stride)


def _strides(domain: Domain) -> list[int]:
    strides, left = [], combinations(domain)
    for step in domain.steps:
        left //= len(step.labels) + 1
        strides.append(left)
    return strides


def decide(tool: Tool, domain_ids, label_ids) -> jax.Array:
    """The verdicts that step labels imply; equal to `Domain.verdict`, for every tool.

    Args:
      domain_ids: int [B], place of the domain in tool.domains.
      label_ids: int [B, S'], place of each step's label in its `labels`, in the order of the domain's steps; -1 (or any
        number that is no label) for a missing one. Columns beyond the domain's steps are not looked at, columns that
        are not there are missing labels.

    Returns:
      int32 [B]: 0 low, 1 moderate, 2 high; -1 where a rule needs a missing label before any has decided, and for a
      domain that the tool does not have.
    """
    return _decide(tables(tool), jnp.asarray(domain_ids), jnp.asarray(label_ids))


@jax.jit
def _decide(tool: Tables, domain, labels):
    steps = tool.labels.shape[1]
    labels = labels[:, :steps].astype(jnp.int32)
    labels = jnp.pad(labels, ((0, 0), (0, steps - labels.shape[1])), constant_values=-1)
    known = (domain >= 0) & (domain < tool.labels.shape[0])
    domain = jnp.where(known, domain, 0)
    codes = jnp.where((labels >= 0) & (labels < tool.labels[domain]), labels, -1) + 1

    effect = jnp.take_along_axis(tool.effect[domain], codes[:, :, None], axis=2)[:, :, 0]
    decides = effect != _GO_ON
    first = jnp.take_along_axis(effect, jnp.argmax(decides, axis=1)[:, None], axis=1)[:, 0]
    listed = jnp.where(decides.any(axis=1), first, tool.otherwise[domain])
    listed = jnp.where(listed == _STOP, -1, listed)

    looked_up = tool.flat[tool.start[domain] + (codes * tool.stride[domain]).sum(axis=1)]
    return jnp.where(known, jnp.where(tool.is_list[domain], listed, looked_up), -1).astype(jnp.int32)


@jax.jit
def step_scores(gold_names, gold_labels, names, labels) -> tuple[jax.Array, jax.Array]:
    """Which gold steps a trace has, and which with the right label.

    Steps are compared by name, in order, each once: the pairs are a longest common subsequence of the names, so a step
    left out, added or moved costs itself and not those after it. Among several of equal length the one with the most
    right labels counts, then the one with the earliest gold steps. A label earns credit only under its own name; of a
    name that is repeated only the first counts.

    Args:
      gold_names: int [B, S], each name once, -1 for padding.
      gold_labels: int [B, S].
      names: int [B, T], -1 for padding and unknown names.
      labels: int [B, T], -1 for unknown labels.

    Returns:
      (name scores, label scores), float32 [B, S] of 0 and 1.
    """
    return jax.vmap(_step_scores)(gold_names, gold_labels, names, labels)


def _step_scores(gold_names, gold_labels, names, labels):
    steps = gold_names.shape[0]
    same = (gold_names[:, None] == names[None, :]) & (gold_names >= 0)[:, None]
    found, place = same.any(axis=1), jnp.argmax(same, axis=1)  # the first of that name
    right = found & (gold_labels >= 0) & (labels[place] == gold_labels)
    # Every gold step has at most one place in the trace: a longest common subsequence is a longest rising run of
    # places. A label weighs so little that it never makes up for a name.
    worth = jnp.where(found, steps + 1 + right.astype(jnp.int32), 0)
    numbers = jnp.arange(steps)

    def best_from(best, number):
        follows = found & (numbers > number) & (place > place[number])
        rest = jnp.max(jnp.where(follows, best, 0), initial=0)
        return best.at[number].set(jnp.where(found[number], worth[number] + rest, 0)), None

    best, _ = jax.lax.scan(best_from, jnp.zeros(steps, jnp.int32), numbers, reverse=True)

    def walk(state, number):
        left, last = state
        take = found[number] & (place[number] > last) & (best[number] == left)
        return (left - jnp.where(take, worth[number], 0), jnp.where(take, place[number], last)), take

    _, taken = jax.lax.scan(walk, (jnp.max(best, initial=0), -1), numbers)
    return taken.astype(jnp.float32), (taken & right).astype(jnp.float32)


@jax.jit
def _score(tool: Tables, traces: Encoded, golds: Encoded, formatted) -> TraceScores:
    name_scores, label_scores = step_scores(golds.names, golds.labels, traces.names, traces.labels)
    # A trace's labels in the order of its domain's steps; the first of a repeated name counts.
    steps = jnp.arange(tool.labels.shape[1])
    same = traces.names[:, None, :] == steps[None, :, None]
    own = jnp.take_along_axis(traces.labels, jnp.argmax(same, axis=2), axis=1)
    implied = _decide(tool, traces.domain, jnp.where(same.any(axis=2), own, -1))
    stated = traces.verdict >= 0
    return TraceScores(
        name_scores,
        label_scores,
        (golds.names >= 0).sum(axis=1).astype(jnp.int32),
        (stated & (traces.verdict == golds.verdict)).astype(jnp.float32),
        formatted.astype(jnp.float32),
        (stated & (traces.verdict == implied)).astype(jnp.float32),
        implied,
    )


def score_traces(
    tool: Tool, traces: Encoded, golds: Encoded, formatted, mesh: jax.sharding.Mesh | None = None
) -> TraceScores:
    """Score traces against gold steps and verdicts, in one jit.

    Rows are padded to a few sizes, so that batches of any size compile a bounded number of times.

    Args:
      traces: what was parsed from model text, see `encode`. A trace that earns nothing at all, such as one without a
        think block, has no steps and no verdict.
      golds: the gold steps and verdicts of the same rows and domains.
      formatted: bool [B], whether the text keeps the format.
      mesh: shard the rows over all axes of this mesh; None: the default device.

    Returns:
      Host arrays of B rows.

    Raises:
      ValueError: rows differ in number or in domain, or the mesh has devices of other processes.
    """
    formatted = np.asarray(formatted, bool)
    count = traces.domain.shape[0]
    if golds.domain.shape[0] != count or formatted.shape != (count,):
        raise ValueError(f"{count} traces, {golds.domain.shape[0]} golds, formatted {formatted.shape}")
    if (traces.domain != golds.domain).any():
        row = int(np.flatnonzero(traces.domain != golds.domain)[0])
        raise ValueError(f"row {row}: the trace and its gold are of different domains")
    size = bucket(count)

    def pad(array):
        return np.pad(array, [(0, size - count)] + [(0, 0)] * (array.ndim - 1), constant_values=-1)

    padded = jax.tree.map(pad, (traces, golds))
    flags = np.pad(formatted, (0, size - count))
    scores = _score(tables(tool), *shard((*padded, flags), mesh))
    return jax.tree.map(lambda array: np.asarray(array)[:count], scores)


@functools.lru_cache(maxsize=32)
def _codes(tool: Tool) -> dict[str, tuple[int, dict[str, tuple[int, dict[str, int]]]]]:
    """Folded domain letter -> its place and its steps: folded name -> place and the codes of folded labels."""
    found = {}
    for place, domain in enumerate(tool.domains):
        steps = {}
        for number, step in enumerate(domain.steps):
            words = {fold(word): step.labels.index(label) for word, label in step.answers.items()}
            words |= {fold(label): code for code, label in enumerate(step.labels)}
            steps[fold(step.name)] = number, words
        found[fold(domain.letter)] = place, steps
    return found


def encode(
    tool: Tool,
    letters: Sequence[str],
    steps: Sequence[Sequence[tuple[str, str]]],
    verdicts: Sequence[str | None],
    strict: bool = False,
) -> Encoded:
    """Names, labels and verdicts as codes.

    Args:
      letters: the domain of each row, as `Domain.letter` has it.
      steps: the (name, label) pairs of each row in order of appearance.
      verdicts: the stated or gold verdict of each row in the tool's words; None: there is none.
      strict: for gold rows: every step, label and verdict must be known and no step named twice. Otherwise unknown
        and repeated names are left out and unknown labels and verdicts are -1: model text never raises.

    Returns:
      T is the number of steps of the tool's longest domain; no trace has more distinct known names.

    Raises:
      InputError: an unknown domain; with `strict` whatever else is unknown; with the row's number from 0.
      ValueError: the lists differ in length.
    """
    count, width = len(letters), steps_of(tool.domains)
    if len(steps) != count or len(verdicts) != count:
        raise ValueError(f"{count} domains, {len(steps)} traces, {len(verdicts)} verdicts")
    domain_ids = np.empty(count, np.int32)
    names, labels = np.full((count, width), -1, np.int32), np.full((count, width), -1, np.int32)
    verdict_ids = np.full(count, -1, np.int32)
    codes = _codes(tool)
    for row, (letter, pairs, verdict) in enumerate(zip(letters, steps, verdicts, strict=True)):
        if fold(letter) not in codes:
            known = [domain.letter for domain in tool.domains]
            raise InputError(f"row {row}: tool {tool.name}: no domain {letter!r}{nearest(str(letter), known)}")
        domain_ids[row], known_steps = codes[fold(letter)]
        if strict:
            _check_row(tool.domain(letter), pairs, f"row {row}")
        seen: dict[int, int] = {}
        for name, label in pairs:
            step = known_steps.get(fold(name))
            if step is not None and step[0] not in seen:
                seen[step[0]] = step[1].get(fold(label), -1)
        names[row, : len(seen)] = list(seen)
        labels[row, : len(seen)] = list(seen.values())
        read = tool.read_verdict(verdict)
        if read is not None:
            verdict_ids[row] = VERDICTS.index(read)
        elif strict:
            raise InputError(f"row {row}: no verdict {verdict!r}{nearest(str(verdict), tool.verdicts)}")
    return Encoded(domain_ids, names, labels, verdict_ids)


def _check_row(domain: Domain, pairs: Sequence[tuple[str, str]], where: str) -> None:
    folded = [fold(name) for name, _ in pairs]
    for name, _ in pairs:
        if folded.count(fold(name)) > 1:
            raise InputError(f"{where}: step {name!r} is named twice")
    try:
        domain.check(dict(pairs))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
