"""Rows of the engine and their named columns: requests, engines, iterations, shares, KV blocks.

A row is an object with the fields below in plain Python, and a record of the same fields in a numpy array where the loop is compiled;
both read `e.requests[r].prompt`. Fields are whole numbers of 64 bits, or of 32 where they are Small, unless annotated as floats. Times are
ticks (sim.ticks).
"""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Small = int  # a count that 32 bits hold
NEVER = 2**62  # when an idle engine goes on
# phases: what the loop does next
DECIDE, SENDS, LAUNCH, LAST, IDLE = range(
    5
)  # SENDS: tokens are sent, then the iteration decided runs; LAST: they are sent, nothing follows
# why it returns: time has to pass up to `wake`, or what is needed
WAITS, NEEDS_ROOM, DONE, TOO_LATE, STUCK = range(5)  # STUCK: none can run
OUTSIDE, QUEUED, RUNNING = range(3)  # where a request is
VLLM, SGLANG, LLAMACPP = range(3)  # kinds of engines
FILLED, EQUAL, STREAMS = range(3)  # how micro-batches are cut (sim.engine.rows.micro_batches)
OCTAVES = 40  # of the mean context of a decode batch
NOBODY = -1
LINE = 64  # bytes that a processor reads together


@dataclass(slots=True, eq=False)
class RequestRow:
    """One request. What every iteration reads comes first."""

    final: int = 0  # epoch of its last token, where it is steady (sim.engine.rows.steady); 0: it is not
    entered: int = 0  # epoch in which it became so
    computed: Small = 0  # tokens that have KV, those of iterations under way among them
    generated: Small = 0  # tokens sampled
    under_way: Small = 0  # tokens of iterations under way
    coming: Small = 0  # samples of iterations under way, drafts among them
    prompt: Small = 0  # tokens
    output: Small = 0
    held: Small = 0  # KV blocks
    hashed: Small = 0  # of these, leading ones that can be found
    drafts: Small = 0  # proposed for the next iteration
    prefilling: Small = 0  # its latest share left some of what is known to compute
    stale: Small = 0  # tokens of iterations under way that it lost its place in
    cancelled: Small = 0
    in_prefill: Small = 0  # started or resumed, and no token since
    state: Small = 0
    seat: Small = NOBODY
    preemptions: Small = 0
    name_rank: Small = 0  # place of its name among all
    comes_with: Small = 0  # tokens whose KV comes with the request
    names: Small = 0  # where the names of its leading blocks begin that others also ask for
    depth: Small = 0  # and how many
    before: Small = NOBODY  # in the queue
    behind: Small = NOBODY
    deferred: Small = 0  # it was passed over while it was stale, and still waits
    hits: Small = 0  # blocks found at the latest admission
    own: Small = NOBODY  # first of its runs of blocks that it gave back and may ask for
    leads: Small = 0  # it begins with tokens that are neither cached nor those of one further up
    loading: Small = 0  # its KV is loaded from host RAM: 2 until that is over, then 1
    from_host: Small = 0  # blocks of it
    host_cached: Small = 0  # tokens of it at the first admission
    offered: Small = 0  # leading chunks that host RAM was offered since its admission
    looked: Small = 0  # chunks up to which it used those in host RAM, or offered its own
    writing: Small = 0  # chunks that are being written there
    node: Small = NOBODY  # where its cached pages end (sim.engine.rows.radix)
    cached: Small = NOBODY  # prompt tokens found at the first admission; -1: not admitted
    sampled_in: Small = NOBODY  # number of the iteration of its latest token, where a log is kept
    fresh: Small = 0  # prompt tokens of all whose first token came in the same iteration
    arrives: int = 0  # ticks, when the engine gets it
    arrival_s: float = 0.0  # when its client sent it
    priority: int = 0
    luck: int = 0  # 32 bits that its draws hang on
    load_over: int = 0
    passed: int = 0  # the latest decision that it was left out of
    fills: int = 0  # 1: it is loading, or in a prefill of several chunks; below 0: that is over with the decision of this number, negated
    adapter: int = 0  # LoRA adapter that it asks for; 0: none
    seen: int = 0  # where it is noted which of its leading chunks it used in host RAM, or offered
    host_rank: int = 0  # its recency there
    sampled_at: int = 0  # ticks when that was sent
    scheduled: int = NOBODY
    first_sent: int = NOBODY
    last_sent: int = NOBODY
    rank: int = 0  # of those that wait: longest cached prefix first
    first_place: float = 0.0  # tokens before it at the API server, and parts of one
    last_place: float = 0.0


@dataclass(slots=True, eq=False)
class EngineRow:
    """One replica: its limits, and where it stands."""

    kind: int = VLLM
    # limits
    seqs: int = 0
    budget: int = 0
    block: int = 0
    watermark: int = 0
    chunked: int = 0
    reserve: int = 0
    caching: int = 0
    overlap: int = 0
    ranked: int = 0
    max_len: int = 0
    threshold: int = 0
    interval: int = 1
    adapters: int = 0  # that the requests of a batch may ask for; 0: any number
    goes_on: int = 0  # rules of the version (sim.engine.versions)
    counts_running: int = 0
    remembers_samples: int = 0
    unnamed: int = 0
    drops_last_hit: int = 0
    drafting: int = 0  # tokens
    lookahead: int = 0
    drafter_rows: int = 0
    seed: int = 0
    chunked_prefill: int = 0  # of SGLang, and down to `ignores_end`
    most_prefill: int = 0  # tokens
    clip: int = 0
    retract_steps: int = 0
    first_ratio: float = 0.0
    least_ratio: float = 0.0
    ratio_step: float = 0.0
    ignores_end: int = 0
    by_prefix: int = 0  # longest cached prefix first
    prompt_tail: int = 0  # tokens; of llama.cpp, and down to `similarity`
    prefill_cap: int = 0
    prefill_first: int = 0
    max_defer: int = 0
    min_waiting: int = 0
    similarity: float = 0.0
    keep: int = 0  # a log
    settles: int = 0  # decodes may be steady
    # prices
    jumps: int = 0  # decode iterations lie on chords
    window: int = 0
    kept: int = 0  # tokens of a context that a decode reads at most; 0: all
    plain: int = 1  # dense attention in HBM
    host_each: int = 0
    host_sequence: int = 0
    host_prefill: int = 0
    launching: int = 0
    launching_pieces: int = 0
    launching_decodes: int = 0
    parts: int = 1
    stages: int = 1
    saved: int = 0
    read_blocks: int = 0
    eager: int = 0
    decode_pieces: float = 0.0  # share of a mixed iteration's launches between pieces
    decodes_alone: int = 0  # no graph holds a prefill batch
    largest_graph: int = 0  # decodes; larger batches are launched kernel by kernel
    graph_reuse: int = 1
    verify_each_s: float = 0.0
    verify_s: float = 0.0
    draft_model: int = 0
    draft_pieces: int = 0
    draft_window: int = 0
    part_tokens: int = 0  # of a part, beyond which chunks are cut
    micro_batch: int = 0  # tokens; 0: an iteration is computed whole
    cuts: int = FILLED
    # where its parts of the columns begin
    first_piece: int = 0
    first_phase: int = 0
    first_block: int = 0
    end_block: int = 0
    first_slot: int = 0
    mask: int = 0
    first_running: int = 0
    first_held: int = 0
    most_blocks: int = 0
    first_share: int = 0
    first_send: int = 0
    first_iteration: int = 0
    root: int = 0
    first_row: int = 0
    row_room: int = 0
    first_entry: int = 0
    entry_room: int = 0
    most_rows: int = 1  # of one iteration
    # KV
    free: int = 0
    blank: int = 0  # of these, blocks without contents
    stack: int = NOBODY  # rows of blocks that stand for nothing
    fresh: int = 0  # the next that never stood for anything
    oldest: int = NOBODY
    newest: int = NOBODY
    seats: int = 0
    idle_hits: int = 0
    shared: int = 0  # holders of blocks, less one for each block that is held
    common: int = 0  # blocks that have several
    unused: int = 0  # pages of SGLang that nothing holds
    evictable: int = 0
    next_node: int = 0
    spare_node: int = NOBODY
    uses: int = 0
    found: int = NOBODY  # by the latest look into the tree
    # host RAM
    host_chunks: int = 0  # 0: it keeps none
    host_blank: int = 0
    chunk: int = 1  # blocks
    chunk_tokens: int = 0
    least_offers: int = 0  # of a chunk that is written; below 2 none are counted
    most_counted: int = 0
    counted: int = 0
    latest_counted: int = NOBODY
    longest_counted: int = NOBODY  # without an offer
    first_count: int = 0
    first_count_slot: int = 0
    count_mask: int = 0
    write_ticks: int = 0  # of a chunk
    load_ticks: int = 0  # of a block
    load_latency: int = 0
    first_chunk: int = 0
    next_chunk: int = 0
    spare_chunk: int = NOBODY
    first_host_slot: int = 0
    host_mask: int = 0
    evictable_chunks: int = 0
    host_rank: int = 0  # the latest
    writes: int = NOBODY  # chunks that are being written, in order
    last_write: int = NOBODY
    unsent_write: int = NOBODY  # the first of these that waits for the next iteration
    writes_end: int = 0
    loads_end: int = 0
    polled: int = 0  # when the worker looked for transfers that are over
    gone: int = NOBODY  # requests that finished since the latest decision
    last_gone: int = NOBODY
    # requests
    decisions: int = 0
    head: int = NOBODY
    tail: int = NOBODY
    queued: int = 0
    deferred: int = 0  # of these, those that were passed over while their tokens were on the way
    running: int = 0
    settled: int = 0  # of these, leading ones that are steady
    steady: int = 0
    steady_context: int = 0  # tokens cached of them
    epoch: int = 0
    sent_epoch: int = 0
    next_final: int = NEVER
    inside: int = 0  # of SGLang: admitted and not done
    begun: int = NOBODY  # whose prompt goes on in the next prefill batch
    prefilled: int = 0  # shares of the latest prefill batch, until the next decision
    prefilled_in: int = 0
    full: int = 0  # no use looking at the queue before a running request finishes
    looks: int = 0
    ratio: float = 0.0  # share of what running requests may still generate that admission reserves
    promised: float = 0.0  # tokens of a prefill batch: expected to be needed, taken, left to compute, left in the chunk
    taken: int = 0
    inputs: int = 0
    chunk_left: int = 0
    endings: int = NOBODY  # of requests that ignore the end of sequence, in the batch that is put together; -1: not looked at
    # prefill interval
    holds: int = 0
    executed: int = 0
    latest_prefill: int = 0
    backed_up: int = 0
    # clocks
    phase: int = IDLE
    now: int = 0
    wake: int = NEVER
    after_arrivals: int = 1
    decides: int = 0
    ends: int = 0
    under_way: int = NOBODY  # iteration (0 or 1) whose tokens are not sent
    decided: int = NOBODY  # iteration that is decided and not launched
    number: int = 0  # iterations whose tokens were sent
    token_ticks: int = 0  # of the API server, which passes tokens on one by one, and when it is through with them
    through: int = 0
    ahead: float = 0.0  # of the tokens of the iteration that is sent, those that wait there before them
    fresh_tokens: int = 0  # of the iteration that is sent: prompts of first tokens, tokens, and those that came without a pause
    sampled: int = 0
    gaps: int = 0
    evicted: int = 0  # preempted by decisions that then had nothing to run
    sent: int = 0
    priced: int = 0
    octave: int = 0
    rows: int = 0
    entries: int = 0
    logged: int = 0  # rows of the log so far, those handed over among them


@dataclass(slots=True, eq=False)
class IterationRow:
    """One iteration as decided."""

    shares: int = 0
    tokens: int = 0
    reads_prompt: int = 0
    prefill: int = 0  # a prefill batch of SGLang
    admitted: int = 0
    preempted: int = 0
    lacks: int = 0
    uniform: int = 0  # all shares of running requests so far verify drafts
    shared: int = 0  # blocks, as EngineRow at the decision
    common: int = 0
    decided: int = 0
    waiting: int = 0
    running: int = 0
    used: int = 0
    host: int = 0
    head_start: int = 0
    started: int = 0
    decodes: int = 0  # shares of one token behind the prompt
    context: int = 0  # tokens that these read, where no drafts are verified
    steady: int = 0  # requests that decode beside its shares
    steady_context: int = 0
    epoch: int = 0
    row: int = NOBODY


@dataclass(slots=True, eq=False)
class PieceRow:
    """A chunk of an iteration in parts, or a share of one in micro-batches."""

    tokens: int = 0
    end: int = 0
    rows: int = 0  # of logits
    part: int = 0  # or slot
    load: int = 0  # tokens of the part that this row's number is
    decodes: int = 0
    taken: int = 0  # tokens of it in the part or micro-batch that is priced


@dataclass(slots=True, eq=False)
class ShareRow:
    """A request's part of an iteration."""

    plain: int = NOBODY  # the request, where it decodes one token and nothing else holds: the rest of the row then stands already
    request: int = 0
    tokens: int = 0
    samples: int = 0
    drafts: int = 0
    blind: int = 0  # its draft rows are padding: none can be accepted
    admitted: int = 0
    in_prefill: int = 0


@dataclass(slots=True, eq=False)
class SendRow:
    """A first or last token that is sent."""

    request: int = 0
    place: float = 0.0  # tokens before it at the API server
    last: int = 0


@dataclass(slots=True, eq=False)
class BlockRow:
    """A KV block that several requests begin with, or a run of blocks with contents that only one can ask for and nobody holds.

    It begins with noughts, and is filled in when it comes to stand for something (sim.engine.rows.kv.new_row).
    """

    refs: int = 0  # holders
    count: int = 0  # blocks
    name: int = 0  # of what several begin with, + 1; 0: a run
    copy: int = 0  # next block with the same contents, or run of the same request
    before: int = 0  # in the order of eviction
    behind: int = 0
    request: int = 0  # who may ask for the run, from its block `first` on
    first: int = 0


@dataclass(slots=True, eq=False)
class ChunkRow:
    """A chunk of KV blocks in host RAM."""

    name: int = 0
    pins: int = 0  # loads under way; -1: it is being written
    rank: int = 0  # the least is evicted first
    place: int = NOBODY  # in the heap of those that can be
    heap: int = 0  # the chunk at the place of the heap that this row's number is
    request: int = 0  # that writes it
    since: int = 0  # decision that wrote it
    over: int = 0  # ticks when it is written
    behind: int = NOBODY


@dataclass(slots=True, eq=False)
class CountRow:
    """How many times host RAM was offered a chunk."""

    name: int = 0
    offers: int = 0
    before: int = 0  # offered next before it, and next after it
    behind: int = 0


@dataclass(slots=True, eq=False)
class NodeRow:
    """A run of cached pages that are shared as one."""

    parent: int = 0
    request: int = 0  # whose pages it has, `count` from `start` on
    start: int = 0
    count: int = 0
    locks: int = 0  # requests that hold it
    children: int = 0
    used: int = 0  # number of its latest use
    before: int = NOBODY  # in the order of use
    behind: int = NOBODY


@dataclass(slots=True, eq=False)
class LogRow:
    """One iteration of the log."""

    started: int = 0
    sent: int = 0
    decided: int = 0
    scheduled: int = 0
    running: int = 0
    waiting: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    used: int = 0
    admitted: int = 0
    preempted: int = 0
    sampled: int = 0
    gaps: int = 0
    lacks: int = 0
    extra: int = 0  # ticks of host work that shows, and of drafting
    more: int = 0  # a micro-batch: the row of another one follows
    decode_kv_s: float = 0.0
    # the batch shape (sim.cost.batch)
    decode_seqs: float = 0.0
    decode_context: float = 0.0
    decode_window: float = 0.0
    decode_kept: float = 0.0  # of attention that is not plain
    prefill_seqs: float = 0.0
    chunk_tokens: float = 0.0
    prefill_context: float = 0.0
    prefill_pairs: float = 0.0
    prefill_window_context: float = 0.0
    prefill_window_pairs: float = 0.0
    logits: float = 0.0
    has_prefill: float = 0.0
    eager: float = 0.0
    pieces: float = 0.0
    padding: float = 0.0
    others: float = 0.0
    head_pairs: float = 0.0
    head_cached: float = 0.0


@dataclass(slots=True, eq=False)
class EntryRow:
    """Something of the log that happened to a request in an iteration."""

    kind: int = 0
    row: int = 0
    request: int = 0
    first: int = 0  # of a chunk its tokens and end; of a token after a pause, ticks of the pause's begin and end; of a loss, its ticks
    second: int = 0


CHUNK, LOST_PLACE, CAME_BACK = range(3)  # kinds of entries


class Core(NamedTuple):
    """Replicas' state. Every one has its own part of `engines` to `entries`; requests, names and prices are those of all."""

    engines: MutableSequence[EngineRow]  # [replicas]
    iterations: MutableSequence[IterationRow]  # [2 * replicas]
    pieces: MutableSequence[PieceRow]  # of the iteration that is priced, where it has parts
    shares: MutableSequence[ShareRow]  # [2 * replicas * places]
    sends: MutableSequence[SendRow]  # [replicas * places]
    blocks: MutableSequence[BlockRow]  # [replicas * blocks] of vLLM
    nodes: MutableSequence[NodeRow]  # [replicas * (pages + 1)] of SGLang
    chunks: MutableSequence[ChunkRow]  # [replicas * chunks of host RAM]
    counts: MutableSequence[CountRow]  # [replicas * chunks whose offers are counted]
    log: MutableSequence[LogRow]
    entries: MutableSequence[EntryRow]
    requests: MutableSequence[RequestRow]
    running: MutableSequence[int]  # requests by admission; behind them the free seats
    held: MutableSequence[int]  # blocks of a request that others begin with, too, by its seat
    table: MutableSequence[int]  # blocks by contents + 1, 0: none
    names: MutableSequence[int]  # of blocks that several requests begin with, whole numbers from 0 on (see RequestRow)
    seen: MutableSequence[int]  # where host RAM keeps KV: whether a request used its leading chunks there, or offered them
    phases: MutableSequence[int]  # [replicas * tokens of a block] steady requests that take a new block together
    padding: MutableSequence[float]  # [decodes] rows that the graph for so many computes beyond them
    acceptance: MutableSequence[float]  # [draft tokens] chance that the draft at a place is accepted, given that all before it are
    chords: MutableSequence[int]  # [batch * OCTAVES + octave] ticks of decodes at a mean context of 2**octave, -1 where not known yet
    row_works: MutableSequence[float]  # [rows * fields of sim.cost.work.RowWork]
    by_rows: MutableSequence[float]  # [3 * rows] seconds of small kernels, of linear layers and of all-reduces; -1 where not known yet
    heads: MutableSequence[float]  # [rows of logits] seconds, -1 where not known yet
    expert_works: MutableSequence[float]  # [2 * stages * rows] bytes and flops of routed experts, with ranks: by rows of all of these
    draft_row_works: MutableSequence[float]  # the same of the drafter
    draft_by_rows: MutableSequence[float]
    draft_heads: MutableSequence[float]


ROWS = {
    "engines": EngineRow,
    "iterations": IterationRow,
    "pieces": PieceRow,
    "shares": ShareRow,
    "sends": SendRow,
    "blocks": BlockRow,
    "nodes": NodeRow,
    "chunks": ChunkRow,
    "counts": CountRow,
    "log": LogRow,
    "entries": EntryRow,
    "requests": RequestRow,
}


@cache
def dtype_of(row: type) -> np.dtype[Any]:
    """The record of a row."""
    return np.dtype([(each.name, {"float": np.float64, "Small": np.int32}.get(str(each.type), np.int64)) for each in fields(row)])


@cache
def _blank(row: type) -> NDArray[np.int64] | None:
    """Words of a row as it begins; None: noughts."""
    found = np.zeros(1, dtype=dtype_of(row))
    for each in fields(row):
        found[each.name] = each.default
    words = np.frombuffer(found.tobytes(), dtype=np.int64)
    return words if words.any() else None


def records(row: type, count: int) -> NDArray[Any]:
    """So many rows as they begin, as an array that begins with a line of the cache. Rows that begin with noughts take no memory until they
    are touched.
    """
    dtype, blank = dtype_of(row), _blank(row)
    size = dtype.itemsize
    room = np.zeros(count * size // 8 + LINE // 8, dtype=np.int64)
    begin = -room.ctypes.data % LINE // 8
    words = room[begin : begin + count * size // 8]
    if blank is not None:
        words.reshape(count, size // 8)[:] = blank
    return words.view(dtype)


class Lazily(dict[int, Any]):
    """Rows of plain Python by place, made when they are first looked at."""

    def __init__(self, row: type) -> None:
        super().__init__()
        self._row = row

    def __missing__(self, place: int) -> Any:
        self[place] = made = self._row()
        return made


class Noughts(dict[int, int]):
    """Whole numbers of plain Python by place, 0 until they are set."""

    def __missing__(self, place: int) -> int:
        return 0


def objects(rows: NDArray[Any], row: type) -> list[Any]:
    """Rows of an array as objects."""
    return [row(*values) for values in rows.tolist()]


class Fields:
    """A record whose fields are attributes; one of numpy's own takes ten times as long."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        object.__setattr__(self, "_record", record)

    def __getattr__(self, name: str) -> Any:
        return self._record[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._record[name] = value


def row_of(rows: Any, place: int) -> Any:
    """A row that Python reads and writes by its fields."""
    return Fields(rows[place]) if isinstance(rows, np.ndarray) else rows[place]


def table_of(rows: Any, row: type, count: int) -> NDArray[Any]:
    """The first rows as an array of records."""
    if isinstance(rows, np.ndarray):
        return rows[:count]
    found = np.zeros(count, dtype=dtype_of(row))
    for each in fields(row):
        found[each.name] = [getattr(rows[i], each.name) for i in range(count)]
    return found
