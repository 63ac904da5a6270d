"""Step times on the integer clock (sim.ticks): what one deployment's iterations are priced with (sim.engine.rows.price).

An iteration is priced by the one formula (sim.cost.step_time) and rounded to ticks, except that a pure decode iteration of dense attention
in HBM is read off the chords of the formula: for each batch the price is taken at mean contexts 1, 2, 4, ... and is linear in the summed
context in between. The formula stays within 1e-4 of its chords (a test holds it).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.attention import BLOCKS_AT_ONCE, reread
from sim.cost.batch import DENSE, BatchShape
from sim.cost.coefficients import Coefficients, coefficients
from sim.cost.gemm import chip_of
from sim.cost.graphs import CAPTURED, captured_padding
from sim.cost.rates import Rates
from sim.cost.step_time import attention_s, exposed_launch_s, step_time_s, terms_of, total_s
from sim.cost.work import Work, attention_work, launch_layers, row_work, work_from
from sim.engine.host_tier import HostLink
from sim.engine.overlap import NO_WORK, HostWork
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.gpu import GpuSpec
from sim.specs.lora import Lora
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import Precision
from sim.ticks import to_ticks

# Launches of a decode between captured pieces of a graph, over a mixed iteration's: a compiled layer's launches by the suite `host`, 208 us
# on the median host, over half of 680 us. No engine was measured at it.
DECODE_PIECES = 0.6

TABLE_ROWS = 8192  # of an iteration whose work is in a table: computed as an array, a row takes a hundredth of the time


def staged_s(c: Any, shape: BatchShape, rates: Any, policy: Any, rows: Any, head: float) -> float:
    """The formula, its stages given: `rows` are the seconds of the iteration's rows (sim.engine.rows.price), `head` those of its rows of
    logits. step_time_s to the last bit (a test holds it). Compiled, too (sim.cluster.compiled): of `c`, `rates`, `policy` only attributes
    are read.
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


def on_chord(start: int, end: int, batch: int, octave: int, context: int) -> int:
    """Ticks of a decode iteration of `batch` sequences at summed `context`, on the chord from `start` to `end` ticks."""
    node = batch << octave
    return start + (end - start) // node * (context - node)


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
    data-parallel ranks an iteration costs what the heaviest of its parts costs (sim.cost.pipeline); `part_tokens` is the
    token budget of a part. With `eager` no graph is captured at all, with `decode_pieces` none that holds attention.

    `jumps` says whether decode iterations lie on chords, and are read off them. Sliding windows, sparse
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
        decode_pieces: bool = False,
        lora: Lora | None = None,
    ) -> None:
        self.model = model
        self.policy = policy
        self.jumps = policy.plain and not model.window and not micro_batch and not decodes_alone and not decode_pieces
        self._parallel, self._parts, self._part_tokens, self.eager = parallel, parallel.parts, part_tokens, eager
        self.decode_pieces = decode_pieces and not eager
        self.micro_batch, self.streams = micro_batch, streams
        self._decode_sizes, self.decodes_alone = decode_sizes, decodes_alone
        self.draft, self.draft_pieces = draft, draft_pieces
        self.verify_s, self.verify_seq_s = verify_s, verify_seq_s
        self.graph_reuse = graph_reuse
        self._host_copies = host_copies
        # micro-batches are those of an engine with kernels of its own
        made_of = model, precision, tp, chip_of(gpu, precision, micro_batch > 0), parallel, lora
        self._coefficients = c = coefficients(*made_of)
        self._made_of = made_of
        self._block_bytes = block_size * (c.kv_token_bytes + c.window_token_bytes)
        self._rates = rates
        share, blocks = reread(model, precision, gpu, tp, rates.beta_kv)
        self.reread = round(1000 * (1.0 - share)), blocks  # what `charged` asks for
        self._preparing = (to_ticks(host.iteration_s), to_ticks(host.sequence_s), to_ticks(host.prefill_s))
        self._launching = to_ticks(c.launch_layers * rates.launch_layer_s)
        self._launching_pieces = 0 if micro_batch else self._launching if eager else to_ticks(c.piece_layers * rates.launch_layer_s)
        self._launching_decodes = self._launching if eager else round(DECODE_PIECES * self._launching_pieces) if decode_pieces else 0

    @property
    def host_ticks(self) -> tuple[int, int, int, int, int, int]:
        """Ticks of host work per iteration, per sequence and for carrying prefill; of launching an eager iteration that reads a prompt, one
        in pieces, and one of decodes.
        """
        return *self._preparing, self._launching, self._launching_pieces, self._launching_decodes

    @property
    def parts(self) -> int:
        """Parts of which an iteration costs what the heaviest costs (sim.cost.pipeline)."""
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

    @property
    def host_link(self) -> tuple[int, int, int]:
        """Ticks in which a KV block is written to host RAM, in which one is loaded, and of a load beside those."""
        if self._host_copies is None:
            return 0, 0, 0
        block = to_ticks(self._block_bytes / self._host_copies.bytes_per_s)
        return block, block, to_ticks(self._host_copies.latency_s)

    def priced(self, shape: BatchShape) -> int:
        """The formula, rounded to ticks."""
        return to_ticks(step_time_s(self.work(shape), self._rates))

    def work(self, shape: BatchShape) -> Work:
        """Work of the iteration."""
        return work_from(self._coefficients, shape, self.policy)

    def row_works(self, most: int) -> NDArray[np.float64]:
        """Work of 0 to at least `most` rows: shape [rows, fields of RowWork]."""
        return _row_works(max(1 << (most - 1).bit_length(), TABLE_ROWS), *self._made_of)

    def expert_works(self, most: int) -> NDArray[np.float64]:
        """Bytes and flops of routed experts by the rows of all ranks, in parts of a stage: shape [more than `most`, 2]."""
        return _expert_works(1 << (most - 1).bit_length(), self.stages, *self._made_of)

    @property
    def largest_graph(self) -> int:
        """Decodes of the largest graph."""
        return int(self._decode_sizes[-1])

    def decode_paddings(self, most: int) -> NDArray[np.float64]:
        """Rows that the graphs captured for 0 to `most` decodes compute beyond them, shape [most + 1]."""
        none = np.zeros(most + 1)
        return none if self.micro_batch or self.eager else none + captured_padding(np.arange(most + 1.0), self._decode_sizes)
