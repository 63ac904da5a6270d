"""Ticks of an iteration of the engine in rows: its shares added up to a batch shape, and the one formula (sim.cost.step_time).

A pure decode iteration of dense attention in HBM is read off the chords of sim.engine.step_clock; everything else is priced exactly. What
hangs on an iteration's rows or logits alone, and the ends of chords, are kept for the next that has as many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.cost.batch import ABSORBED_TOKENS, BatchShape, ChunkSums, chunk_pairs, chunk_window_pairs, from_sums
from sim.cost.graphs import GRAPH_TOKENS
from sim.cost.step_time import all_reduce_s, attention_s, head_s, kernels_s, linear_s
from sim.cost.work import HeadWork, RowWork, attention_work
from sim.engine.rows.layout import OCTAVES, Core, EngineRow, IterationRow, PieceRow
from sim.engine.rows.log import note_shape
from sim.engine.rows.micro_batches import list_shares, next_micro_batch
from sim.engine.rows.parts import deal, decodes_of_part, sort_pieces
from sim.engine.step_clock import charged, late_share, on_chord, staged_s
from sim.ticks import to_ticks

FIELDS = len(RowWork._fields)


class Given(NamedTuple):
    """Inputs of the formula: coefficients, rates and attention policy of the model, and of its drafter."""

    coefficients: Any
    rates: Any
    policy: Any
    draft_coefficients: Any
    draft_rates: Any
    draft_policy: Any


class RowSeconds(NamedTuple):
    """Seconds that depend on an iteration's rows alone: small kernels, linear layers, and the all-reduces between them."""

    kernels: float
    linear: float
    comm: float


class Batch(NamedTuple):
    """Sums over an iteration's shares: decodes and, as floats, chunks (sim.cost.batch.chunk_sums) and those of them that verify drafts."""

    decodes: int
    context: int
    near: int
    kept: int
    chunks: float
    tokens: float
    read: float
    pairs: float
    near_read: float
    near_pairs: float
    logits: float
    head_pairs: float
    head_cached: float
    verifying: int
    verified: float  # their tokens
    verified_read: float
    verified_pairs: float
    verified_near_read: float
    verified_near_pairs: float
    longest: int  # of them
    behind: int  # tokens cached before them
    draft_near: int  # of all contexts, inside the drafter's window


def batch_of(e: Core, s: EngineRow, it: IterationRow, i: int) -> Batch:
    """The sums of an iteration that is about to run."""
    near = kept = verifying = longest = behind = draft_near = 0
    decodes, context = it.steady, it.steady_context
    chunks = tokens = read = pairs = near_read = near_pairs = logits = head_pairs = head_cached = 0.0
    verified = verified_read = verified_pairs = verified_near_read = verified_near_pairs = 0.0
    window = s.window
    begin = s.first_share + i * (s.seqs + 1)
    for place in range(begin, begin + it.shares):
        share = e.shares[place]
        row = e.requests[share.request]
        n, end = share.tokens, row.computed
        start = end - n
        beyond = end - row.prompt - row.generated
        if n == 1 and beyond <= 0 and start >= row.prompt:
            decodes += 1
            context += start
            if window:
                near += min(start, window)
            if s.kept:
                kept += min(start, s.kept)
            if s.draft_window:
                draft_near += min(start, s.draft_window)
            continue
        chunks += 1.0
        tokens += n
        read += end
        causal = chunk_pairs(n, end)
        pairs += causal
        if n > ABSORBED_TOKENS:
            head_pairs += causal
            head_cached += start
        if window:
            near_read += min(end, window + n)
            near_pairs += chunk_window_pairs(n, end, window)
        if beyond > 0:
            logits += beyond + 1
            verifying += 1
            longest = max(longest, n)
            behind += start
            verified += n
            verified_read += end
            verified_pairs += causal
            if window:
                verified_near_read += min(end, window + n)
                verified_near_pairs += chunk_window_pairs(n, end, window)
            if s.draft_window:
                draft_near += min(start, s.draft_window)
        elif beyond == 0:
            logits += 1.0
    return Batch(
        decodes, context, near, kept, chunks, tokens, read, pairs, near_read, near_pairs, logits, head_pairs, head_cached,
        verifying, verified, verified_read, verified_pairs, verified_near_read, verified_near_pairs, longest, behind, draft_near,
    )  # fmt: skip


def decodes_alone(decodes: int, context: int) -> Batch:
    """The sums of an iteration of decodes alone."""
    return Batch(decodes, context, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0)


def octave_of(mean: int, near: int) -> int:
    """The largest k with 2**k at most `mean`, sought from `near`."""
    while mean >> near == 0:
        near -= 1
    while mean >> near > 1:
        near += 1
    return near


def preparing(s: EngineRow, sequences: int, prefill: int) -> int:
    """Ticks of host work before an iteration of so many sequences can be launched, beyond what the rates hold."""
    if s.parts > 1:
        sequences = -(-sequences // s.parts)
    return s.host_each + sequences * s.host_sequence + prefill * s.host_prefill


def occupied(s: EngineRow, it: IterationRow) -> int:
    """Ticks for which an iteration keeps the host: preparing it, and launching what no graph does."""
    reading = s.launching_pieces if it.tokens <= s.parts * GRAPH_TOKENS else s.launching
    return preparing(s, it.shares + it.steady, it.reads_prompt) + (reading if it.reads_prompt else s.launching_decodes)


def price(e: Core, s: EngineRow, i: int, given: Given) -> None:
    """Price iteration `i`: `s.priced` holds its ticks."""
    it = e.iterations[s.first_iteration + i]
    if s.micro_batch:
        price_micro_batches(e, s, it, i, given)
        return
    b = (
        decodes_alone(it.decodes, it.context)
        if s.jumps and not s.drafting and it.decodes == it.shares + it.steady
        else batch_of(e, s, it, i)
    )
    chunks = int(b.chunks)
    all_verify = b.verifying > 0 and b.verifying == chunks and all_logits(b)
    ready = preparing(s, it.shares + it.steady, int(chunks > 0))
    exposed, left = max(ready - it.head_start, 0), max(it.head_start - ready, 0)
    context = b.context
    if it.shared and s.plain:
        shared, common = it.shared * s.block, it.common * s.block
        context = charged(context, b.decodes, b.decodes + chunks, shared, common, s.saved, s.read_blocks)
    if s.jumps and not chunks:
        mean = octave_of(context // b.decodes, s.octave)
        s.octave = mean
        start, end = chord_end(e, s, given, b.decodes, mean), chord_end(e, s, given, b.decodes, mean + 1)
        own = on_chord(start, end, b.decodes, mean, context)
        s.priced = exposed + own
        if s.keep:
            note_shape(e, s, it, part_of(e, s, it, i, b, context) if s.parts > 1 else shape_of(e, s, b, context, False), exposed, 0)
        return
    shape = part_of(e, s, it, i, b, context) if s.parts > 1 else shape_of(e, s, b, context, all_verify)
    launching = s.launching if shape.eager else s.launching_pieces if shape.has_prefill else s.launching_decodes
    if left and launching:
        late = late_share(left, launching)
        shape = with_launches(shape, shape.eager * late, shape.pieces * late)
    own = shape_ticks(e, s, given, shape)
    drafting = 0
    if b.verifying:
        drafting = to_ticks(s.verify_s + b.verifying * s.verify_each_s)
        if s.draft_model:
            proposing = draft_shape(s, b)
            rows = int(proposing.decode_seqs + proposing.padding)
            by_rows = row_seconds(e.draft_row_works, e.draft_by_rows, given.draft_rates, rows)
            head = head_seconds(e.draft_heads, given.draft_coefficients, given.draft_rates, int(proposing.sampled))
            step = to_ticks(staged_s(given.draft_coefficients, proposing, given.draft_rates, given.draft_policy, by_rows, head))
            drafting += (b.longest - 1) * step
    s.priced = exposed + own + drafting
    if s.keep:
        note_shape(e, s, it, shape, exposed + drafting, int(b.tokens - b.verified))
        if b.tokens > b.verified:
            e.log[it.row].decode_kv_s = decodes_kv_s(b, b.kept if s.kept else b.context, shape, given)


def price_micro_batches(e: Core, s: EngineRow, it: IterationRow, i: int, given: Given) -> None:
    """The same of one that is computed as micro-batches, one after the other."""
    count, left, kv_s, prefill_tokens = list_shares(e, s, it, i), it.tokens, 0.0, it.tokens
    for place in range(s.first_piece, s.first_piece + count):
        prefill_tokens -= e.pieces[place].decodes
    s.priced = 0
    while left:
        left -= next_micro_batch(e, s, count)
        shape = micro_batch_shape(e, s, count)
        s.priced += shape_ticks(e, s, given, shape)
        if s.keep:
            note_shape(e, s, it, shape, 0, prefill_tokens)
            e.log[it.row].more = int(left > 0)
            kv_s += attention_s(without_chunks(attention_work(given.coefficients, shape, given.policy)), given.rates)
    if s.keep and prefill_tokens:
        e.log[it.row].decode_kv_s = kv_s if it.tokens > prefill_tokens else 0.0


def micro_batch_shape(e: Core, s: EngineRow, count: int) -> BatchShape:
    """The batch of what is taken of so many pieces, and is then left of them no more: no graph is captured for it."""
    decodes = context = near = kept = 0
    for place in range(s.first_piece, s.first_piece + count):
        piece = e.pieces[place]
        if piece.decodes and piece.taken:
            start = piece.end - 1
            decodes += 1
            context += start
            near += min(start, s.window)
            kept += min(start, s.kept) if s.kept else start
    shape = from_sums(float(decodes), float(context), float(near), float(kept), sums_of(e, s, count))
    has_prefill = 0.0 if all_verified(e, s, count) else shape.has_prefill
    for place in range(s.first_piece, s.first_piece + count):
        piece = e.pieces[place]
        piece.tokens -= piece.taken
        piece.rows = min(piece.rows, piece.tokens)
    return with_graphs(shape, has_prefill, shape.eager, 0.0, 0.0, 0.0)


def sums_of(e: Core, s: EngineRow, count: int) -> ChunkSums:
    """The sums (sim.cost.batch.chunk_sums) of the chunks that are taken of so many pieces."""
    chunks = tokens = read = pairs = near_read = near_pairs = logits = head_pairs = head_cached = 0.0
    for place in range(s.first_piece, s.first_piece + count):
        piece = e.pieces[place]
        n = piece.taken
        if not n or piece.decodes:
            continue
        end = piece.end - piece.tokens + n
        causal = chunk_pairs(n, end)
        chunks += 1.0
        tokens += n
        read += end
        pairs += causal
        logits += rows_of(piece)
        if n > ABSORBED_TOKENS:
            head_pairs += causal
            head_cached += end - n
        if s.window:
            near_read += min(end, s.window + n)
            near_pairs += chunk_window_pairs(n, end, s.window)
    return chunks, tokens, read, pairs, near_read, near_pairs, logits, head_pairs, head_cached


def rows_of(piece: PieceRow) -> int:
    """Rows to sample of what is taken of a piece: the last ones."""
    return min(piece.rows - min(piece.rows, piece.tokens - piece.taken), piece.taken)


def all_verified(e: Core, s: EngineRow, count: int) -> bool:
    """Whether chunks that are taken of so many pieces verify drafts, all of their rows."""
    found = True
    for place in range(s.first_piece, s.first_piece + count):
        piece = e.pieces[place]
        found = found and (not piece.taken or piece.decodes > 0 or rows_of(piece) == piece.taken > 1)
    return found


def shape_ticks(e: Core, s: EngineRow, given: Given, shape: BatchShape) -> int:
    """The formula, rounded to ticks."""
    rows = int(shape.decode_seqs + shape.prefill_tokens + shape.padding)
    if shape.others:
        by_rows = seconds_with(e, given.rates, rows, 2 * round((rows + shape.others) * s.stages))
    else:
        by_rows = row_seconds(e.row_works, e.by_rows, given.rates, rows)
    head = head_seconds(e.heads, given.coefficients, given.rates, int(shape.sampled))
    return to_ticks(staged_s(given.coefficients, shape, given.rates, given.policy, by_rows, head))


def row_seconds(works: Any, seconds: Any, rates: Any, rows: int) -> RowSeconds:
    """Seconds of so many rows: of the table, which has them from then on."""
    if seconds[3 * rows] < 0.0:
        at = rows * FIELDS
        work = RowWork(works[at], works[at + 1], works[at + 2], works[at + 3], works[at + 4], works[at + 5], works[at + 6], works[at + 7])
        seconds[3 * rows], seconds[3 * rows + 1], seconds[3 * rows + 2] = (
            kernels_s(work, rates),
            linear_s(work, rates),
            all_reduce_s(work, rates),
        )
    return RowSeconds(seconds[3 * rows], seconds[3 * rows + 1], seconds[3 * rows + 2])


def seconds_with(e: Core, rates: Any, rows: int, experts: int) -> RowSeconds:
    """Seconds of so many rows, where routed experts have the work of a place in the table: rows of other ranks pass them, too."""
    at, works = rows * FIELDS, e.row_works
    work = RowWork(
        works[at], works[at + 1], works[at + 2], works[at + 3], e.expert_works[experts], e.expert_works[experts + 1], works[at + 6],
        works[at + 7],
    )  # fmt: skip
    return RowSeconds(kernels_s(work, rates), linear_s(work, rates), all_reduce_s(work, rates))


def head_seconds(seconds: Any, c: Any, rates: Any, logits: int) -> float:
    """Seconds of so many rows of logits: of the table, which has them from then on."""
    if seconds[logits] < 0.0:
        seconds[logits] = head_s(HeadWork(c.head_bytes, logits * c.head_flops), rates)
    found: float = seconds[logits]
    return found


def chord_end(e: Core, s: EngineRow, given: Given, batch: int, octave: int) -> int:
    """Ticks of a decode iteration of `batch` sequences at a mean context of 2**octave tokens."""
    place = batch * OCTAVES + octave
    if e.chords[place] < 0:
        share = -(-batch // s.parts)
        shape = shape_of(e, s, decodes_alone(share, share << octave), share << octave, False)
        others = rows_of_others(s, batch, share)
        e.chords[place] = shape_ticks(e, s, given, with_graphs(shape, 0.0, shape.eager, shape.pieces, shape.padding, others))
    return e.chords[place]


def all_logits(b: Batch) -> bool:
    """Whether chunks that verify sample all of their rows: none goes on with a prompt beside its drafts."""
    return b.logits == b.tokens


def shape_of(e: Core, s: EngineRow, b: Batch, context: int, all_verify: bool) -> BatchShape:
    """The batch as the graph captured for it computes it."""
    sums = (b.chunks, b.tokens, b.read, b.pairs, b.near_read, b.near_pairs, b.logits, b.head_pairs, b.head_cached)
    shape = from_sums(float(b.decodes), float(context), float(b.near), float(b.kept if s.kept else context), sums)
    has_prefill, eager, pieces, padding = shape.has_prefill, shape.eager, shape.pieces, shape.padding
    if all_verify:
        has_prefill, pieces = 0.0, s.decode_pieces
    if s.eager:
        padding, pieces, eager = 0.0, 0.0, 1.0
    elif b.chunks == 0.0:
        padding, pieces = e.padding[b.decodes], s.decode_pieces
        if s.decodes_alone and b.decodes > s.largest_graph:
            eager = 1.0  # no graph is that large: the host launches kernel by kernel
    elif s.decodes_alone:
        padding = 0.0
    if b.verifying and not s.graph_reuse:
        padding, eager = 0.0, 1.0
    return with_graphs(shape, has_prefill, eager, pieces, padding, 0.0)


def part_of(e: Core, s: EngineRow, it: IterationRow, i: int, b: Batch, context: int) -> BatchShape:
    """The heaviest part of the iteration, as the graph captured for it computes it."""
    count = sort_pieces(e, s, it, i) if b.chunks else 0
    heaviest = deal(e, s, count, b.decodes)
    decodes = decodes_of_part(s, b.decodes, heaviest)
    for place in range(s.first_piece, s.first_piece + count):
        e.pieces[place].taken = e.pieces[place].tokens if e.pieces[place].part == heaviest else 0
    sums = sums_of(e, s, count)
    chunks, tokens = sums[0], sums[1]
    share, kept = decodes / b.decodes if b.decodes else 0.0, b.kept if s.kept else context
    shape = from_sums(float(decodes), float(context) * share, float(b.near) * share, float(kept) * share, sums)
    others = rows_of_others(s, b.decodes + b.tokens, decodes + tokens)
    has_prefill, eager, pieces, padding = shape.has_prefill, shape.eager, shape.pieces, shape.padding
    if all_verified(e, s, count):
        has_prefill, pieces = 0.0, s.decode_pieces
    if s.eager:
        padding, pieces, eager = 0.0, 0.0, 1.0
    elif chunks == 0.0:
        padding, pieces = e.padding[decodes], s.decode_pieces
        if s.decodes_alone and decodes > s.largest_graph:
            eager = 1.0
    elif s.decodes_alone:
        padding = 0.0
    if b.verifying and not s.graph_reuse:
        padding, eager = 0.0, 1.0
    return with_graphs(shape, has_prefill, eager, pieces, padding, others)


def rows_of_others(s: EngineRow, total: float, own: float) -> float:
    """Rows of the other ranks' parts beside the heaviest in the same micro-batch, of so many in all."""
    return max(total / s.stages - own, 0.0) if s.parts > s.stages else 0.0


def draft_shape(s: EngineRow, b: Batch) -> BatchShape:
    """One step of the drafter, which reads what all requests of the iteration have cached."""
    count, share = b.decodes + b.verifying, 1.0
    if s.parts > 1:  # of the heaviest part, whose sequences are like all
        count = -(-count // s.parts)
        share = count / (b.decodes + b.verifying)
    context = float(b.context + b.behind) * share
    none = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    shape = from_sums(float(count), context, float(b.draft_near) * share, context, none)
    return with_graphs(shape, shape.has_prefill, shape.eager, float(s.draft_pieces), shape.padding, 0.0)


def with_launches(shape: BatchShape, eager: float, pieces: float) -> BatchShape:
    """The shape with other shares of its launches."""
    return with_graphs(shape, shape.has_prefill, eager, pieces, shape.padding, shape.others)


def with_graphs(shape: BatchShape, has_prefill: float, eager: float, pieces: float, padding: float, others: float) -> BatchShape:
    """The shape computed by another graph, or none."""
    return BatchShape(
        shape.decode_seqs,
        shape.decode_context,
        shape.decode_window,
        shape.decode_kept,
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_context,
        shape.prefill_pairs,
        shape.prefill_window_context,
        shape.prefill_window_pairs,
        shape.sampled,
        has_prefill,
        eager,
        pieces,
        padding,
        others,
        shape.head_pairs,
        shape.head_cached,
    )


def decodes_kv_s(b: Batch, kept: int, shape: BatchShape, given: Given) -> float:
    """Seconds of attention for decodes beside prefill, those that verify drafts included."""
    if not b.decodes and not b.verifying:
        return 0.0
    if b.verifying:
        verified = (
            float(b.verifying), b.verified, b.verified_read, b.verified_pairs, b.verified_near_read, b.verified_near_pairs, b.verified,
            0.0, 0.0,
        )  # fmt: skip
        alone = from_sums(float(b.decodes), float(b.context), float(b.near), float(kept), verified)
        work = attention_work(given.coefficients, with_graphs(alone, 0.0, 0.0, 0.0, 0.0, 0.0), given.policy)
        return float(attention_s(work, given.rates))
    return float(attention_s(without_chunks(attention_work(given.coefficients, shape, given.policy)), given.rates))


def without_chunks(work: Any) -> Any:
    """Attention of decodes alone."""
    return type(work)(work.kv_bytes, work.attention_flops, 0.0, 0.0, work.link_bytes, work.link_hidden_bytes)
