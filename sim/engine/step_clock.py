"""Step times on the integer clock (sim.ticks): what an engine loop asks of an iteration as scheduled.

An iteration is priced by the one formula (sim.cost.step_time) and rounded to ticks, except that a pure decode iteration of dense attention
in HBM is read off the chords of the formula: for each batch the price is taken at mean contexts 1, 2, 4, ... and is linear in the summed
context in between. The formula stays within 1e-4 of its chords (a test holds it), and the time of any number
of unchanged decode iterations becomes an integer polynomial: a simulator that jumps over them and one that takes them one by one agree to
the last tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.attention import BLOCKS_AT_ONCE, reread
from sim.cost.batch import DENSE, BatchShape, chunk_sums, from_sums, mixed_batch
from sim.cost.coefficients import Coefficients, coefficients
from sim.cost.graphs import CAPTURED, GRAPH_TOKENS, captured_padding
from sim.cost.parts import Chunk, cut, heaviest, other_rows
from sim.cost.rates import Rates
from sim.cost.step_time import (
    NAMES,
    Terms,
    all_reduce_s,
    attention_s,
    exposed_launch_s,
    head_s,
    kernels_s,
    linear_s,
    step_terms,
    terms_of,
    total_s,
)
from sim.cost.work import RowWork, Work, attention_work, launch_layers, row_work, work_from
from sim.engine.host_tier import HostLink
from sim.engine.interface import Iteration, Request, StepPrice
from sim.engine.microbatch import equal_micro_batches, micro_batches
from sim.engine.overlap import NO_WORK, HostWork
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.gpu import GpuSpec
from sim.specs.lora import Lora
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import Precision
from sim.ticks import TICK_S, Stretch, to_ticks

TABLE_ROWS = 8192  # of an iteration whose work is in a table: computed as an array, a row takes a hundredth of the time


def split(iteration: Iteration) -> tuple[list[int], list[Chunk]]:
    """(contexts of the decodes, chunks) of an iteration about to run.

    A request that computes one token past its prompt is a decode; any other share of the iteration is a chunk. A
    prefill chunk samples at most its last token; one that goes past the request's known tokens verifies drafts, and
    all its rows are sampled.
    """
    contexts: list[int] = []
    chunks: list[Chunk] = []
    for request, tokens in iteration.scheduled:
        start = request.computed_tokens
        beyond = start + tokens - request.known_tokens
        if beyond > 0:
            chunks.append((tokens, start + tokens, beyond + 1))
        elif tokens == 1 and start >= request.prompt_tokens:
            contexts.append(start)
        else:
            chunks.append((tokens, start + tokens, int(beyond == 0)))
    return contexts, chunks


def reads_prompt(scheduled: tuple[Request, int]) -> bool:
    """Whether a request's share of an iteration is prefill: tokens of one that has answered are drafts, unless it was preempted."""
    request, tokens = scheduled
    return tokens > 1 and (not request.generated_tokens or request.computed_tokens + tokens <= request.known_tokens)


def verifies(chunks: Sequence[Chunk]) -> bool:
    """Whether all chunks verify drafts: that is not prefill."""
    return bool(chunks) and chunks[0][2] > 1 and all(n == rows > 1 for n, _, rows in chunks)


def shape_of(model: ModelSpec, contexts: Iterable[int], chunks: Sequence[Chunk], policy: AttentionPolicy) -> BatchShape:
    """The sums that the work needs."""
    shape = mixed_batch(model, contexts, chunks, policy)
    return shape._replace(has_prefill=0.0, pieces=0.0) if verifies(chunks) else shape


class _Rows(NamedTuple):
    """Seconds that depend on an iteration's rows alone: kernels on the GPU, and the all-reduces between them."""

    kernels: float
    linear: float
    comm: float


def staged_s(c: Any, shape: BatchShape, rates: Any, policy: Any, rows: Any, head: float) -> float:
    """The formula, its stages given: `rows` are the seconds of the iteration's rows (_Rows), `head` those of its rows of logits.
    step_time_s to the last bit (a test holds it). Compiled, too (sim.engine.compiled): of `c`, `rates` and `policy` only attributes are
    read.
    """
    sequences, attention = shape.decode_seqs + shape.prefill_seqs, attention_work(c, shape, policy)
    kv, state = attention_s(attention, rates), sequences * c.state_seq_bytes / rates.beta_state
    layers, weights = launch_layers(c, shape), rows.linear + head
    busy = rows.kernels + weights + kv + state
    summaries = c1 = link = 0.0
    if policy.selects:
        summaries = shape.decode_context / policy.unit_tokens * c.summary_unit_bytes / rates.beta_kv
        c1 = c.kv_layers * rates.c1_s + c.kv_layers * policy.k * rates.c1_unit_s
    if policy.on_host:
        gathers = c.kv_layers * rates.gather_s if policy.selects else 0.0
        link = attention.link_bytes / rates.link_bytes_per_s + gathers
        link = link - min(attention.link_hidden_bytes / rates.link_bytes_per_s, busy)
    launch = exposed_launch_s(busy + link, layers, rates) if layers else 0.0
    terms = terms_of(rates, sequences, shape.has_prefill, rows.kernels, weights, kv, state, rows.comm, launch, summaries, c1, link)
    return float(total_s(terms))


def late_share(head_start: int, launching: int) -> float:
    """Share of `launching` ticks of launches that is left after a head start of the host."""
    return max(1.0 - head_start / launching, 0.0)


def on_chord(start: int, end: int, batch: int, octave: int, context: int) -> Stretch:
    """The decode iterations of `batch` sequences from summed `context` to the end of the chord from `start` to `end` ticks."""
    node = batch << octave
    slope = (end - start) // node
    return Stretch(start + slope * (context - node), slope * batch, -(-(2 * node - context) // batch))


@lru_cache(maxsize=64)
def _row_works(most: int, *made_of: Any) -> NDArray[np.float64]:
    """Work of up to `most` rows for every draw of the rates, shape [most + 1, fields of RowWork]."""
    work = row_work(coefficients(*made_of), np.arange(most + 1.0))
    return np.stack([np.broadcast_to(np.asarray(each, dtype=np.float64), most + 1) for each in work], axis=1)


@lru_cache(maxsize=64)
def _expert_works(most: int, stages: int, *made_of: Any) -> NDArray[np.float64]:
    none = np.zeros(most + 1)
    work = row_work(coefficients(*made_of), none, np.arange(most + 1.0) / stages)
    return np.stack(
        [np.broadcast_to(np.asarray(each, dtype=np.float64), most + 1) for each in (work.expert_bytes, work.expert_flops)], axis=1
    )


def charged(context: int, batch: int, sequences: int, shared_tokens: int, common_tokens: int, saved: int, blocks: int) -> int:
    """Tokens that `batch` decodes of summed `context` are charged with, of `sequences` in the iteration. Of `common_tokens` that several
    running requests hold, `shared_tokens` are counted again: reading these saves `saved` thousandths (sim.cost.attention.reread), but for
    one read in each wave of sequences, of `blocks` a sequence. Chunks are charged in full. A batch with prefill holds them in equal parts.
    """
    waves = max(batch * blocks - BLOCKS_AT_ONCE, 0)  # beyond the first one, in parts of one
    again = max(shared_tokens - common_tokens * waves // BLOCKS_AT_ONCE, 0)
    return context - min(saved * again * batch // (1000 * sequences), saved * context // 1000)


class StepTime:
    """Ticks per iteration of one deployment at fixed rates (floats).

    With `micro_batch`, an iteration is computed as batches of at most that many tokens, one after the other
    (llama.cpp's n_ubatch), of equal share for every request where the model keeps recurrent state; their size is
    their own. With `streams`, requests keep a KV stream each, and batches are of equal share and consecutive slots.
    Otherwise iterations run the graph captured for the next size up: their linear layers compute that many rows,
    and one beyond the largest runs unpadded. Decode batches have `decode_sizes`; all others vLLM's, unless `decodes_alone` are
    captured and batches beyond launched kernel by kernel. An iteration that verifies
    drafts costs `verify_s` more and `verify_seq_s` for each request with drafts (their search), and as many decode steps of the
    model of `draft` as it verifies drafts per request, with `draft_pieces` from pieces of graphs; without `graph_reuse`
    no captured graph holds it, and all its kernels are launched one by one. `host_copies` is the link that KV blocks
    in host RAM take. `host` is work that the rates leave out because an engine may do it while the GPU computes the iteration
    before: it shows as far as it exceeds the head start with which an iteration is priced (sim.engine.overlap), as the
    launching of kernels does. `gpu` is where GEMMs may have been measured. With pipeline stages or
    data-parallel ranks an iteration costs what the heaviest of its parts costs (sim.cost.parts); `part_tokens` is the
    token budget of a part. With `eager` no graph is captured at all.

    `jumps` says whether decode iterations lie on chords, so that `stretch` applies. Sliding windows, sparse
    policies, KV in host RAM and kernels launched one by one make the price depend on each sequence's context or
    bend within a chord; such iterations are all priced one by one.
    """

    def __init__(
        self,
        model: ModelSpec,
        precision: Precision,
        rates: Rates,
        *,
        tp: int = 1,
        policy: AttentionPolicy = DENSE,
        micro_batch: int = 0,
        streams: bool = False,
        decode_sizes: Sequence[int] = CAPTURED,
        decodes_alone: bool = False,
        draft: StepTime | None = None,
        draft_pieces: bool = False,
        verify_s: float = 0.0,
        verify_seq_s: float = 0.0,
        graph_reuse: bool = True,
        host_copies: HostLink | None = None,
        block_size: int = 16,
        host: HostWork = NO_WORK,
        gpu: GpuSpec | None = None,
        parallel: Parallel = NO_PARALLEL,
        part_tokens: int = 0,
        eager: bool = False,
        lora: Lora | None = None,
    ) -> None:
        self.model = model
        self.policy = policy
        self.jumps = policy.plain and not model.window and not micro_batch and not decodes_alone
        self._parallel, self._parts, self._part_tokens, self.eager = parallel, parallel.parts, part_tokens, eager
        self.micro_batch = micro_batch
        self.streams = streams
        self._decode_sizes, self.decodes_alone = decode_sizes, decodes_alone
        self.draft, self.draft_pieces = draft, draft_pieces
        self.verify_s, self.verify_seq_s = verify_s, verify_seq_s
        self.graph_reuse = graph_reuse
        self._host_copies = host_copies
        # micro-batches are those of an engine with kernels of its own
        made_of = model, precision, tp, None if micro_batch else gpu, parallel, lora
        self._coefficients = c = coefficients(*made_of)
        self._made_of = made_of
        self._block_bytes = block_size * (c.kv_token_bytes + c.window_token_bytes)
        self._rates = rates
        share, blocks = reread(model, precision, gpu, tp, rates.beta_kv)
        self.reread = round(1000 * (1.0 - share)), blocks  # what `charged` asks for
        self._chords: dict[tuple[int, int], tuple[int, int]] = {}
        self._rows: dict[Any, _Rows] = {}
        self._heads: dict[float, float] = {}
        self._preparing = (to_ticks(host.iteration_s), to_ticks(host.sequence_s), to_ticks(host.prefill_s))
        self._works = any(self._preparing)
        self._launching = to_ticks(c.launch_layers * rates.launch_layer_s)
        self._launching_pieces = 0 if micro_batch else self._launching if eager else to_ticks(c.piece_layers * rates.launch_layer_s)
        self._launching_decodes = self._launching if eager else 0

    @property
    def host_ticks(self) -> tuple[int, int, int, int, int, int]:
        """Ticks of host work per iteration, per sequence and for carrying prefill; of launching an eager iteration that reads a prompt, one
        in pieces, and one of decodes.
        """
        return *self._preparing, self._launching, self._launching_pieces, self._launching_decodes

    @property
    def whole(self) -> bool:
        """Whether decode iterations lie on chords, and every iteration is one part, replayed from graphs as far as there are any."""
        return self.jumps and self._parts == 1 and not self.eager

    @property
    def parts(self) -> int:
        """Parts of which an iteration costs what the heaviest costs (sim.cost.parts)."""
        return self._parts

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self._parallel.pp

    @property
    def part_tokens(self) -> int:
        """Tokens beyond which a chunk is cut for pipeline stages; 0: none is."""
        return self._part_tokens if self._parallel.pp > 1 else 0

    @property
    def given(self) -> tuple[Coefficients, Rates, AttentionPolicy]:
        """Coefficients of the work, the rates that settle it, and the attention policy."""
        return self._coefficients, self._rates, self.policy

    def iteration(self, iteration: Iteration, head_start: int = 0) -> int:
        """Ticks of an iteration as decided, before its requests advance, with the host `head_start` ticks ahead."""
        contexts, chunks = split(iteration)
        exposed, left = self.exposed(len(iteration.scheduled), bool(chunks) and not verifies(chunks), head_start)
        if self.jumps and not chunks:
            batch = len(contexts)
            return exposed + self.stretch(batch, charged(sum(contexts), batch, batch, *iteration.shared, *self.reread)).first
        own = sum(
            self.priced(self.launched_late(shape, left)) for shape in self.shapes(contexts, chunks, iteration.places, iteration.shared)
        )
        return exposed + own + self.drafting(contexts, chunks)

    def preparing(self, sequences: int, prefill: bool) -> int:
        """Ticks of host work before an iteration of so many sequences can be launched, beyond what the rates hold."""
        each, per_sequence, with_prefill = self._preparing
        if self._parts > 1:
            sequences = -(-sequences // self._parts)
        return each + sequences * per_sequence + prefill * with_prefill

    def exposed(self, sequences: int, prefill: bool, head_start: int) -> tuple[int, int]:
        """(ticks of that work that the GPU waits for, head start left for launching)."""
        preparing = self.preparing(sequences, prefill) if self._works else 0
        return max(preparing - head_start, 0), max(head_start - preparing, 0)

    def occupied(self, sequences: int, tokens: int, prefill: bool) -> int:
        """Ticks for which an iteration keeps the host: preparing it, and launching what no graph does."""
        captured = tokens <= self._parts * GRAPH_TOKENS
        reading = self._launching_pieces if captured else self._launching
        return self.preparing(sequences, prefill) + (reading if prefill else self._launching_decodes)

    def host(self, iteration: Iteration) -> int:
        """`occupied` of an iteration as decided, its requests at whatever stage."""
        return self.occupied(len(iteration.scheduled), iteration.total_tokens, any(map(reads_prompt, iteration.scheduled)))

    def shapes(
        self, contexts: list[int], chunks: list[Chunk], places: Sequence[int] = (), shared: tuple[int, int] = (0, 0)
    ) -> list[BatchShape]:
        """The batches that the iteration is computed as; `places` are slot numbers of the decodes, then of the chunks."""
        if self.micro_batch:
            if self.streams:
                parts = equal_micro_batches(contexts, chunks, self.micro_batch, places)
            else:
                parts = (equal_micro_batches if self.model.state_layers else micro_batches)(contexts, chunks, self.micro_batch)
            return [shape_of(self.model, *part, self.policy)._replace(padding=0.0, pieces=0.0) for part in parts]
        if self._parts > 1:
            whole = self._shared(shape_of(self.model, contexts, [], self.policy), len(chunks), shared)
            shape = self._part(len(contexts), whole.decode_context, whole.decode_window, whole.decode_kept, chunks)
        else:
            shape = self._shared(shape_of(self.model, contexts, chunks, self.policy), len(chunks), shared)
        shape = self._padded(shape)
        if not self.graph_reuse and any(rows > 1 for _, _, rows in chunks):
            shape = shape._replace(padding=0.0, eager=1.0)
        return [shape]

    def _shared(self, shape: BatchShape, chunks: int, shared: tuple[int, int]) -> BatchShape:
        """The shape as it is charged where running requests share KV (`charged`): dense attention in HBM, and whole contexts."""
        if not shared[0] or not self.policy.plain:
            return shape
        batch = int(shape.decode_seqs)
        context = float(charged(int(shape.decode_context), batch, batch + chunks, *shared, *self.reread))
        return shape._replace(decode_context=context, decode_kept=context)

    def drafting(self, contexts: list[int], chunks: list[Chunk]) -> int:
        """Ticks spent on proposing the drafts that the iteration verifies."""
        verified = [(n, end) for n, end, rows in chunks if rows > 1]
        if not verified:
            return 0
        ticks = to_ticks(self.verify_s + len(verified) * self.verify_seq_s)
        if self.draft is not None:
            steps = max(n for n, _ in verified) - 1
            behind = [*contexts, *(end - n for n, end in verified)]
            proposing = shape_of(self.draft.model, behind, [], self.draft.policy)._replace(pieces=float(self.draft_pieces))
            if self._parts > 1:  # of the heaviest part, whose sequences are like all
                count = -(-len(behind) // self._parts)
                share = count / len(behind)
                context, near = proposing.decode_context * share, proposing.decode_window * share
                proposing = from_sums(float(count), context, near, context, chunk_sums([], None))._replace(pieces=proposing.pieces)
            ticks += steps * self.draft.priced(proposing)
        return ticks

    @property
    def host_link(self) -> tuple[int, int, int]:
        """Ticks in which a KV block is written to host RAM, in which one is loaded, and of a load beside those."""
        if self._host_copies is None:
            return 0, 0, 0
        block = to_ticks(self._block_bytes / self._host_copies.bytes_per_s)
        return block, block, to_ticks(self._host_copies.latency_s)

    def mixed(self, batch: int, context: int, near: int, kept: int, chunks: Sequence[Chunk], head_start: int = 0) -> int:
        """Ticks of `chunks` beside `batch` decodes of summed `context` (tokens), `near` of it in the window and `kept` read, with the host
        `head_start` ticks ahead.
        """
        exposed, left = self.exposed(batch + len(chunks), not verifies(chunks), head_start)
        if self._parts > 1:
            shape = self._part(batch, context, near, kept, chunks)
        else:
            sums = chunk_sums(chunks, self.model.window)
            shape = from_sums(float(batch), float(context), float(near), float(kept), sums)
            if verifies(chunks):
                shape = shape._replace(has_prefill=0.0, pieces=0.0)
        if self.eager:
            shape = shape._replace(padding=0.0, pieces=0.0, eager=1.0)
        if self.decodes_alone or self.micro_batch:
            shape = shape._replace(padding=0.0)
        if self.micro_batch:
            shape = shape._replace(pieces=0.0)
        return exposed + self.priced(self.launched_late(shape, left))

    def stretch(self, batch: int, context: int) -> Stretch:
        """The decode iterations of `batch` sequences that begin at summed `context` (at least `batch`), up to the chord's end."""
        octave = (context // batch).bit_length() - 1
        start, end = self.chord(batch, octave)
        return on_chord(start, end, batch, octave, context)

    def chord(self, batch: int, octave: int) -> tuple[int, int]:
        """Ticks of a decode iteration of `batch` sequences at mean contexts of 2**octave tokens and of twice as many."""
        found = self._chords.get((batch, octave))
        if found is None:
            before = self._chords.get((batch, octave - 1))
            start = before[1] if before else self._at(batch, octave)
            found = self._chords[batch, octave] = start, self._at(batch, octave + 1)
        return found

    def priced(self, shape: BatchShape) -> int:
        """The formula, rounded to ticks."""
        rows = self.rows(shape.decode_seqs + shape.prefill_tokens + shape.padding, shape.others)
        return to_ticks(staged_s(self._coefficients, shape, self._rates, self.policy, rows, self.head(shape.sampled)))

    def work(self, shape: BatchShape) -> Work:
        """Work of the iteration."""
        return work_from(self._coefficients, shape, self.policy)

    def rows(self, rows: float, others: float = 0.0) -> _Rows:
        """Seconds that so many rows take, whatever they are, beside so many of other data-parallel ranks."""
        key = (rows, others) if others else rows
        found = self._rows.get(key)
        if found is None:
            rates, work = self._rates, self._row_work(rows, others)
            found = self._rows[key] = _Rows(kernels_s(work, rates), linear_s(work, rates), all_reduce_s(work, rates))
        return found

    def _row_work(self, rows: float, others: float) -> RowWork:
        if rows > TABLE_ROWS or rows != int(rows):
            return row_work(self._coefficients, rows, others)
        found = RowWork(*self.row_works(TABLE_ROWS)[int(rows)].tolist())
        if not others:
            return found
        routed = round((rows + others) * self.stages)
        experts = self.expert_works(max(routed, TABLE_ROWS))[routed].tolist()
        return found._replace(expert_bytes=experts[0], expert_flops=experts[1])

    def row_works(self, most: int) -> NDArray[np.float64]:
        """Work of 0 to at least `most` rows: shape [rows, fields of RowWork]."""
        return _row_works(max(1 << (most - 1).bit_length(), TABLE_ROWS), *self._made_of)

    def expert_works(self, most: int) -> NDArray[np.float64]:
        """Bytes and flops of routed experts by the rows of all ranks, in parts of a stage: shape [more than `most`, 2]."""
        return _expert_works(1 << (most - 1).bit_length(), self.stages, *self._made_of)

    def head(self, sampled: float) -> float:
        """Seconds of the output projection for so many rows of logits."""
        found = self._heads.get(sampled)
        if found is None:
            found = self._heads[sampled] = head_s(self.work(BatchShape(sampled=sampled)), self._rates)
        return found

    def launched_late(self, shape: BatchShape, head_start: int) -> BatchShape:
        """The shape without the share of its launches that the host does in a head start of so many ticks."""
        launching = self._launching if shape.eager else self._launching_pieces if shape.pieces else 0
        if not head_start or not launching:
            return shape
        late = late_share(head_start, launching)
        return shape._replace(eager=shape.eager * late, pieces=shape.pieces * late)

    def _part(self, batch: int, context: float, near: float, kept: float, chunks: Sequence[Chunk]) -> BatchShape:
        """The heaviest part of an iteration of `batch` decodes (sums of their contexts) and chunks."""
        pieces = cut(chunks, self._part_tokens) if self._parallel.pp > 1 and self._part_tokens else chunks
        decodes, mine, total = heaviest(pieces, batch, self._parts)
        share = decodes / batch if batch else 0.0
        sums = chunk_sums(mine, self.model.window)
        shape = from_sums(float(decodes), float(context) * share, float(near) * share, float(kept) * share, sums)
        if verifies(mine):
            shape = shape._replace(has_prefill=0.0, pieces=0.0)
        return shape._replace(others=other_rows(float(total), float(decodes + sums[1]), self._parallel))

    @property
    def largest_graph(self) -> int:
        """Decodes of the largest graph."""
        return int(self._decode_sizes[-1])

    def decode_paddings(self, most: int) -> NDArray[np.float64]:
        """Rows that the graphs captured for 0 to `most` decodes compute beyond them, shape [most + 1]."""
        none = np.zeros(most + 1)
        return none if self.micro_batch or self.eager else none + captured_padding(np.arange(most + 1.0), self._decode_sizes)

    def _at(self, batch: int, octave: int) -> int:
        share = -(-batch // self._parts)
        b, context = float(share), float(share << octave)
        others = other_rows(float(batch), b, self._parallel)
        return self.priced(self._padded(BatchShape(decode_seqs=b, decode_context=context, decode_kept=context, sampled=b, others=others)))

    def _padded(self, shape: BatchShape) -> BatchShape:
        """An iteration as the graph captured for it computes it: rows of padding pass the linear layers and read no KV."""
        if self.micro_batch:
            return shape._replace(padding=0.0)
        if self.eager:
            return shape._replace(padding=0.0, pieces=0.0, eager=1.0)
        tokens = shape.decode_seqs + shape.prefill_tokens
        if shape.prefill_seqs:
            return shape._replace(padding=0.0 if self.decodes_alone else captured_padding(tokens))
        beyond = self.decodes_alone and tokens > self._decode_sizes[-1]  # no graph is that large: the host launches kernel by kernel
        return shape._replace(padding=captured_padding(tokens, self._decode_sizes), eager=1.0 if beyond else shape.eager)


class IterationCost:
    """Prices iterations of one deployment at fixed rates (floats): the ticks of StepTime, and the terms of the formula beside them.

    Pure decode iterations take their ticks from StepTime's chords, so their terms add up to the duration within 1e-4 of it.
    """

    terms: tuple[str, ...] = NAMES

    def __init__(
        self, model: ModelSpec, precision: Precision, rates: Rates, *, tp: int = 1, policy: AttentionPolicy = DENSE, **more: Any
    ) -> None:
        """`more` are further settings of StepTime: micro-batches, graph sizes, the cost of drafting."""
        self.steps = StepTime(model, precision, rates, tp=tp, policy=policy, **more)
        self._rates = rates

    def host(self, iteration: Iteration) -> int:
        """Ticks for which the iteration keeps the host."""
        return self.steps.host(iteration)

    def __call__(self, iteration: Iteration, head_start: int = 0) -> StepPrice:
        """Ticks of the iteration with the host `head_start` ticks ahead, and its seconds by term.

        Host work that shows and drafting count as fixed cost, reloaded KV as link.
        """
        steps, (contexts, chunks) = self.steps, split(iteration)
        exposed, left = steps.exposed(len(iteration.scheduled), bool(chunks), head_start)
        shapes = [steps.launched_late(shape, left) for shape in steps.shapes(contexts, chunks, iteration.places, iteration.shared)]
        works = [steps.work(shape) for shape in shapes]
        parts = [step_terms(work, self._rates) for work in works]
        terms = parts[0] if len(parts) == 1 else Terms(*map(sum, zip(*parts, strict=True)))
        if steps.jumps and not chunks:
            drafting = 0
            batch = len(contexts)
            own = steps.stretch(batch, charged(sum(contexts), batch, batch, *iteration.shared, *steps.reread)).first
        else:
            own, drafting = sum(map(steps.priced, shapes)), steps.drafting(contexts, chunks)
        if exposed or drafting:
            terms = terms._replace(fixed=terms.fixed + (exposed + drafting) * TICK_S)
        ticks, prefill = exposed + own + drafting, sum(n for n, _, rows in chunks if rows <= 1)
        return StepPrice(ticks, terms, prefill, self._decode_kv_s(contexts, chunks, works) if prefill else terms.kv)

    def _decode_kv_s(self, contexts: list[int], chunks: list[Chunk], works: list[Work]) -> float:
        """Seconds of the term `kv` for decodes beside prefill, those that verify drafts included."""
        if not contexts and all(rows <= 1 for _, _, rows in chunks):
            return 0.0
        verifying = [chunk for chunk in chunks if chunk[2] > 1]
        if verifying:
            works = [self.steps.work(shape_of(self.steps.model, contexts, verifying, self.steps.policy))]
        else:
            works = [work._replace(prefill_kv_bytes=0.0, prefill_flops=0.0) for work in works]
        return float(sum(attention_s(work, self._rates) for work in works))
