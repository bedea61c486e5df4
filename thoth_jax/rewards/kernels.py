"""The device half of SCORE and of SciRecipe-Eval: one jit, one vmap, no Python per pair.

Every function below works on one pair; `pair_scores` maps them over the batch. Shape letters: B pairs, G golds,
S predicted steps (padded with action -1), T gold steps (padded with -2), W mask words.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from thoth_jax.rewards.encoding import Steps


class Options(NamedTuple):
    """What of ScoreConfig the kernels need, as numbers and switches on the device: no setting compiles anew."""

    order_exact: bool
    order_lcs: bool
    object_token: bool
    parameter_token: bool
    parameter_weight: float
    object_threshold: float
    per_longest: bool  # content over max(n, m) instead of the matched pairs
    decay_power: float
    use_decay: bool


class Pairing(NamedTuple):
    """Which gold step each predicted one is compared with, [B, S]; obj, par and decay are 0 where partner is -1."""

    partner: jax.Array
    obj: jax.Array
    par: jax.Array
    decay: jax.Array


class PairScores(NamedTuple):
    """One value a pair, float32. matched is a count; obj, par and decay are means over the aligned pairs."""

    order: jax.Array
    content: jax.Array
    content_per_gold: jax.Array
    subsequence: jax.Array
    matched: jax.Array
    exact: jax.Array
    obj: jax.Array
    par: jax.Array
    decay: jax.Array
    pairing: Pairing  # what the values were made of


# The fields of PairScores that are one value a pair.
VALUES = PairScores._fields[:-1]


def step_scale(difference, limit):
    """f(d) = cos(pi d / 2M) below M, 0 from M on (paper equation 3). `limit` is M."""
    difference = difference.astype(jnp.float32)
    return jnp.where(difference < limit, jnp.cos(jnp.pi * difference / (2 * limit)), 0.0)


def position_decay(distance, gold_count, power):
    """m_ij = max(0, 1 - (|i - j| / D)^power), D the number of gold steps."""
    ratio = distance.astype(jnp.float32) / jnp.maximum(gold_count, 1).astype(jnp.float32)
    return jnp.where(ratio < 1, 1 - jnp.minimum(ratio, 1) ** power, 0.0)


def iou(mask, other, size, other_size):
    """Intersection over union of two sets given as masks [..., W] and sizes; two empty sets are equal: 1."""
    both = lax.population_count(mask & other).sum(-1).astype(jnp.int32)
    union = size + other_size - both
    return jnp.where(union == 0, 1.0, both / jnp.maximum(union, 1))


def lcs_table(predicted, gold):
    """L[j, i] = length of the longest common subsequence of predicted[i:] and gold[j:].

    Args:
      predicted: [S] actions.
      gold: [T] actions.

    Returns:
      int32 [T + 1, S + 1].
    """
    end = jnp.zeros(predicted.shape[0] + 1, jnp.int32)

    def row(below, action):
        # L[j, i] = max(L[j, i+1], L[j+1, i], 1 + L[j+1, i+1] where equal): a running maximum from the right.
        taken = jnp.where(predicted == action, below[1:] + 1, 0)
        best = jnp.append(jnp.maximum(below[:-1], taken), 0)
        best = lax.cummax(best, reverse=True)
        return best, best

    _, rows = lax.scan(row, end, gold, reverse=True)
    return jnp.concatenate([rows, end[None]])


def align_greedy(predicted, gold, gold_count, *, exhaust: bool):
    """Walk over the predicted steps with a pointer into the gold that only goes forward.

    `exhaust`: a predicted action that is not found leaves the pointer at the end (the published evaluator); otherwise
    it stays where it was (the paper's figure 2).

    Returns:
      int32 [S]: the gold step of each predicted one, -1 for none.
    """
    places = jnp.arange(gold.shape[0])

    def walk(pointer, action):
        found = (gold == action) & (places >= pointer)
        at, hit = jnp.argmax(found).astype(jnp.int32), found.any()
        missed = gold_count.astype(jnp.int32) if exhaust else pointer
        return jnp.where(hit, at + 1, missed), jnp.where(hit, at, -1)

    return lax.scan(walk, jnp.int32(0), predicted)[1]


def align_lcs(predicted, gold, table):
    """The pairs of a longest common subsequence, walking forward; on a tie the predicted step is skipped.

    Returns:
      int32 [S], as `align_greedy`.
    """
    places = jnp.arange(gold.shape[0] + 1)

    def walk(pointer, step):
        action, here, after = step
        equal = jnp.append(gold == action, False)
        # Skip gold steps while that keeps more than skipping this predicted step would.
        gold_skipped = jnp.append(here[1:], -1)
        stop = (places >= pointer) & (equal | (after >= gold_skipped))
        at = jnp.argmax(stop).astype(jnp.int32)
        hit = equal[at]
        return jnp.where(hit, at + 1, at), jnp.where(hit, at, -1)

    return lax.scan(walk, jnp.int32(0), (predicted, table[:, :-1].T, table[:, 1:].T))[1]


def align_partial(equal, worth, before, gold_count, *, ready_only: bool):
    """Walk over the predicted steps; a gold step is free until it, or a step that must come after it, is taken.

    Where the gold's steps follow one another, that is `align_greedy`. Among free steps with the same action, one whose
    predecessors are all taken goes first, then the one with the higher worth, then the first.

    Args:
      equal: bool [S, T], the actions are the same.
      worth: float32 [S, T], at least 0: content of the pair.
      before: bool [T, T], [i, j]: i must come before j.
      ready_only: only steps whose predecessors are all taken may be taken.

    Returns:
      int32 [S], as `align_greedy`.
    """
    places = jnp.arange(before.shape[0])

    def walk(state, step):
        taken, closed = state
        same, value = step
        free = same & ~closed & (places < gold_count)
        ready = ~jnp.any(before & ~taken[:, None], axis=0)
        free = free & ready if ready_only else free
        at = jnp.argmax(jnp.where(free, 1 + value + 1000.0 * ready, 0.0)).astype(jnp.int32)
        hit = free.any()
        here = hit & (places == at)
        return (taken | here, closed | here | (hit & before[:, at])), jnp.where(hit, at, -1)

    none = jnp.zeros(before.shape[0], bool)
    return lax.scan(walk, (none, none), (equal, worth))[1]


def _map_steps(steps: Steps, change) -> Steps:
    """The masks and sizes of one pair's steps, changed."""
    return steps._replace(masks=jax.tree.map(change, steps.masks), sizes=jax.tree.map(change, steps.sizes))


def _overlaps(predicted: Steps, gold: Steps, options: Options):
    """Obj and Par of pairs of steps; the masks of both sides broadcast."""

    def overlap(name):
        sizes, others = predicted.sizes[name], gold.sizes[name]
        return iou(predicted.masks[name], gold.masks[name], sizes, others), sizes, others

    obj = overlap("objects")[0]
    obj = jnp.where((obj == 0) & options.object_token, overlap("object_tokens")[0], obj)
    par, sizes, others = overlap("parameters")
    token = jnp.where((sizes == 0) != (others == 0), 0.0, overlap("parameter_tokens")[0])
    par = jnp.where(options.parameter_token, token, par)
    return obj, jnp.where(obj >= options.object_threshold, par, 0.0)


def _score_pair(predicted: Steps, gold: Steps, order, options: Options, alignment: str) -> PairScores:
    n, m = predicted.count, gold.count
    table = lcs_table(predicted.actions, gold.actions)
    lcs = table[0, 0]
    if alignment == "lcs":
        partner = align_lcs(predicted.actions, gold.actions, table)
    else:
        partner = align_greedy(predicted.actions, gold.actions, m, exhaust=alignment == "greedy_reference")
    shorter = jnp.minimum(n, m)
    included = (lcs == shorter) & (shorter > 0)
    if order is not None:
        # A gold with a partial order: any of its orders is right. Of gold steps with one action, a predicted step
        # stands for the one that it fits best.
        before, partial = order
        equal = predicted.actions[:, None] == gold.actions[None, :]
        obj, par = _overlaps(_map_steps(predicted, lambda leaf: leaf[:, None]), gold, options)
        walk = functools.partial(align_partial, equal, obj + options.parameter_weight * par, before, m)
        free = walk(ready_only=False)
        kept = (free >= 0).sum()
        whole = (walk(ready_only=True) >= 0).sum() == m
        written = ~jnp.any(jnp.tril(before)) & included  # as written, where that is one of the right orders
        partner = jnp.where(partial, free, partner)
        included = jnp.where(partial, ((kept == n) | whole) & (shorter > 0) | written, included)
        lcs = jnp.where(partial, jnp.where(written, shorter, kept), lcs)
    aligned = partner >= 0
    other = jnp.maximum(partner, 0)
    obj, par = _overlaps(predicted, _map_steps(gold, lambda leaf: leaf[other]), options)
    decay = position_decay(jnp.abs(jnp.arange(partner.shape[0]) - partner), m, options.decay_power)
    step = jnp.where(options.use_decay, decay, 1.0) * (obj + options.parameter_weight * par)

    matched = aligned.sum()

    def mean(values, denominator):
        return jnp.where(aligned, values, 0.0).sum() / jnp.maximum(denominator, 1)

    exact = (n == m) & (lcs == n)
    subsequence = included | exact
    in_order = jnp.where(options.order_exact, exact, subsequence).astype(jnp.float32)
    lcs_share = jnp.where(n + m == 0, 1.0, 2 * lcs / jnp.maximum(n + m, 1))
    return PairScores(
        order=jnp.where(options.order_lcs, lcs_share, in_order),
        content=mean(step, jnp.where(options.per_longest, jnp.maximum(n, m), matched)),
        content_per_gold=mean(step, m),
        subsequence=subsequence.astype(jnp.float32),
        matched=matched.astype(jnp.float32),
        exact=exact.astype(jnp.float32),
        obj=mean(obj, matched),
        par=mean(par, matched),
        decay=mean(decay, matched),
        pairing=Pairing(partner, *(jnp.where(aligned, values, 0.0) for values in (obj, par, decay))),
    )


@functools.partial(jax.jit, static_argnames="alignment")
def pair_scores(
    predicted: Steps, gold: Steps, gold_row: jax.Array, options: Options, alignment: str, order=None
) -> PairScores:
    """Scores of B pairs.

    Args:
      predicted: [B, S] steps.
      gold: [G, T] steps.
      gold_row: [B] the gold of each prediction.
      options: see `Options`.
      alignment: as in ScoreConfig.
      order: None, or (before [G, T, T], partial [G]) as in `encoding.Batch`.

    Returns:
      PairScores of [B] arrays (and its pairing).
    """
    paired, order = jax.tree.map(lambda leaf: leaf[gold_row], (gold, order))
    score = functools.partial(_score_pair, options=options, alignment=alignment)
    return jax.vmap(score)(predicted, paired, order)


@jax.jit
def content_tables(predicted: Steps, gold: Steps, gold_row: jax.Array, options: Options):
    """Obj + weight * Par of every predicted with every gold step that has the same action, float32 [B, S, T]; elsewhere
    -1. No position decay. Arguments as in `pair_scores`."""
    paired = jax.tree.map(lambda leaf: leaf[gold_row], gold)

    def one(predicted, gold):
        obj, par = _overlaps(_map_steps(predicted, lambda leaf: leaf[:, None]), gold, options)
        equal = predicted.actions[:, None] == gold.actions[None, :]
        return jnp.where(equal, obj + options.parameter_weight * par, -1.0)

    return jax.vmap(one)(predicted, paired)


class Gates(NamedTuple):
    """Host-side facts of B outputs: [B] arrays."""

    format_gate: jax.Array
    consistency_gate: jax.Array
    scored: jax.Array  # 0 where the key could not be parsed
    predicted_count: jax.Array
    gold_count: jax.Array
    scale_limit: jax.Array  # M
    mean_words: jax.Array  # Lbar


class Combination(NamedTuple):
    """How ScoreConfig puts the parts together, as numbers and switches."""

    order_product: bool
    final_sum: bool
    max_words: float
    penalty_unit: float  # g = Lbar / penalty_unit above max_words
    use_step_scale: bool
    use_length_penalty: bool
    use_order: bool


@jax.jit
def combine(gates: Gates, order: jax.Array, content: jax.Array, rule: Combination):
    """Gates, scale and semantics -> (step_scale, semantics, total), each [B] (paper equation 3 and SCORE itself)."""
    difference = jnp.abs(gates.predicted_count - gates.gold_count)
    scale = jnp.where(rule.use_step_scale, step_scale(difference, gates.scale_limit), 1.0)
    long = (gates.mean_words > rule.max_words) & rule.use_length_penalty
    scale = jnp.where(long, scale * rule.penalty_unit / gates.mean_words, scale)
    product = jnp.where(rule.use_order, order, 1.0) * content
    semantics = jnp.where(rule.order_product, product, jnp.where(rule.use_order, order, 0.0) + content)
    joined = jnp.where(rule.final_sum, scale + semantics, scale * semantics)
    scale, semantics, joined = (value * gates.scored for value in (scale, semantics, joined))
    return scale, semantics, gates.format_gate * gates.consistency_gate * joined
