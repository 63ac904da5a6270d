"""State of the array engine (sim.engine.core): what its columns and places mean, and how they are made.

Columns are lists or arrays in plain Python and numpy arrays where the loop is compiled; all are indexed alike.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from sim.cost.graphs import GRAPH_TOKENS
from sim.engine.config import EngineConfig
from sim.engine.step_clock import StepTime, charged

Ints = MutableSequence[int]  # or an int64 array
Floats = MutableSequence[float]

# `s`: limits, which do not change in a run
_places = count()
SEQS, BUDGET, BLOCK, BLOCKS, WATERMARK, CHUNKED, RESERVE, CACHING, OVERLAP, RANKED = (next(_places) for _ in range(10))
HOST_EACH, HOST_SEQUENCE, HOST_PREFILL = (next(_places) for _ in range(3))
LAUNCHING, LAUNCHING_PIECES, LAUNCHING_DECODES, PARTS, WHOLE, SAVED, READ_BLOCKS = (next(_places) for _ in range(7))
KEEP, ROW_ROOM, ENTRY_ROOM, DEPTHS, HEARD = (next(_places) for _ in range(5))  # HEARD: it stops where tokens are sent
# and what does
PHASE, NOW, WAKE, AFTER_ARRIVALS, NEXT_ARRIVAL = (next(_places) for _ in range(5))  # see sim.engine.core.advance
QUEUE_HEAD, QUEUE_TAIL, QUEUED, RUNNING, RUNNING_HEAD, BATCH, CONTEXT, CLOCK = (next(_places) for _ in range(8))
ADMISSIONS, PARTIAL, PARTIAL_DONE, LEAVING, SHARES, FINISHING, FILLING, SEATS = (next(_places) for _ in range(8))
FREE, UNHASHED, OLDEST, NEWEST, NODES, NODE_FREE = (next(_places) for _ in range(6))
# holders of blocks, less one for each block that is held, and blocks that have several; the same at the decision
SHARED, COMMON, WAS_SHARED, WAS_COMMON = (next(_places) for _ in range(4))
DECIDES, ENDS, UNDER_WAY, UNSENT, SENDING, SENDS_AT, SENT = (next(_places) for _ in range(7))
PLANNED, PLAN_ENDS, OPEN, ORIGIN, FIRST, INCREMENT = (next(_places) for _ in range(6))
TAKEN = next(_places)  # whether planned iterations have their blocks
NEEDED, NEEDED_OCTAVE, OCTAVE, PRICED, START, TOKENS, HITS, OWN, WATCH = (next(_places) for _ in range(9))
WAS_RUNNING, WAS_USED, ADMITTED, PREEMPTED, REQUEUED, LACKS, ROWS, ENTRIES = (next(_places) for _ in range(8))
SCALARS = next(_places)

# `q`: a request's numbers, REQUEST of them one after the other; a request is named by where they begin
_places = count()
ARRIVES, PROMPT, OUTPUT = (next(_places) for _ in range(3))  # ticks, ascending; tokens
COMES_WITH = next(_places)  # tokens whose KV comes with the request
NAMES, DEPTH = (next(_places) for _ in range(2))  # where the names of its leading blocks begin that others also ask for, and how many
GENERATED, ADMISSION, PREEMPTIONS = (next(_places) for _ in range(3))  # tokens at the latest admission or preemption; number of that
OFFSET, BEGAN, FINISHES = (
    next(_places) for _ in range(3)
)  # of a decode: computed tokens less the decode clock; clock then, and at the end
FILLS = next(_places)  # clock at which a decode fills a block that others may ask for; -1: not expected
COMPUTED = next(_places)  # tokens of a request that is leaving; 0: it is not
BEHIND = next(_places)  # the next in the queue; of one ordered by rank, one child in a heap, and BEGAN the other
OF_SEAT, HELD = (next(_places) for _ in range(2))  # place of its list of findable blocks that others also ask for; how many it holds
RUN, RUN_BEFORE, RUN_AFTER = (next(_places) for _ in range(3))  # free blocks with its own contents; what is evicted before and after them
CACHED = next(_places)  # prompt tokens found at the first admission; -1: not admitted
SCHEDULED, FIRST_SENT, FIRST_PLACE, LAST_SENT, LAST_PLACE = (next(_places) for _ in range(5))  # ticks, and places in the iteration
FRESH = next(_places)  # prompt tokens of all whose first token came in the same iteration
REQUEST = next(_places)

# `w`: lists of requests, of which the first so many hold
_places = count()
RUNNING_AT, FINISH_AT, FILL_AT, LEAVING_AT, SEAT_AT = (
    next(_places) for _ in range(5)
)  # by admission, from RUNNING_HEAD; heaps; free seats
SHARE_AT, SHARE_TOKENS_AT, SHARE_START_AT = (next(_places) for _ in range(3))  # prefill of the iteration that is decided
UNSENT_AT, UNSENT_PLACE_AT, UNSENT_LAST_AT = (next(_places) for _ in range(3))  # first and last tokens of the iteration under way
SENDING_AT, SENDING_PLACE_AT, SENDING_LAST_AT = (next(_places) for _ in range(3))  # the same of tokens that are sent at SENDS_AT
SEAT = next(_places)

# `nodes`: a findable block that several ask for, NODE numbers each; a node is named by where they begin
_places = count()
NAME, HOLDERS, COPY = (next(_places) for _ in range(3))  # contents; requests that hold it; next block with the same contents, -1 none
BEFORE, AFTER = (next(_places) for _ in range(2))  # in the order of eviction, where nobody holds it
NODE = next(_places)

# phases: what the loop does next
DECIDE, MIXED, JUMP, SEND, SENDS, PASSES, IDLE = range(7)
NEVER = 2**62  # when an idle engine goes on
# why it returns: to let the time pass up to WAKE, or for what is needed
WAITS, NEEDS_CHORD, NEEDS_ROWS, NEEDS_HEAD, NEEDS_PRICE, NEEDS_ROOM, DONE, TOO_LATE = range(8)

OCTAVES = 40  # of the mean context of a decode batch

# columns of the log's rows, one for an iteration with prefill or a stretch of decode iterations
ROW_COLUMNS = (
    "n",  # iterations
    "decided",  # ticks, of the first
    "launched",  # ticks, when the host was through with the first
    "settled",  # ticks, when the tokens of the last were sent where nothing followed it; -1: when its successor was launched
    "under_way",  # whether another one was under way at the decision
    "head_start",  # ticks of the host at the decision
    "first",  # ticks of the first iteration
    "increment",  # ticks that each next one takes more
    "clock",  # decode iterations before it
    "decodes",  # requests that decode in every one of them
    "batch",  # of the price: the same and those that go on after a preemption with a single token
    "context",  # summed tokens that these read in the first
    "shares",  # requests that compute prefill or go on after a preemption
    "tokens",  # of the first
    "chunks",  # of the price: shares that are no decodes
    "chunk_tokens",
    "chunk_context",
    "chunk_pairs",
    "chunk_sampled",
    "head_pairs",  # of chunks that latent attention reads as heads
    "head_cached",
    "sampled",  # of the first
    "fresh",  # of these, first tokens and those after a preemption
    "running",  # at the decision
    "used",  # KV blocks at the decision
    "left",  # KV blocks that were used when the first had been launched and places were given up
    "admitted",
    "preempted",
    "requeued",  # of these, that wait again
    "lacks",  # what kept the first waiting request out
)
(
    R_N, R_DECIDED, R_LAUNCHED, R_SETTLED, R_UNDER_WAY, R_HEAD_START, R_FIRST, R_INCREMENT, R_CLOCK, R_DECODES, R_BATCH, R_CONTEXT,
    R_SHARES, R_TOKENS, R_CHUNKS, R_CHUNK_TOKENS, R_CHUNK_CONTEXT, R_CHUNK_PAIRS, R_CHUNK_SAMPLED, R_HEAD_PAIRS, R_HEAD_CACHED,
    R_SAMPLED, R_FRESH, R_RUNNING, R_USED, R_LEFT, R_ADMITTED, R_PREEMPTED, R_REQUEUED, R_LACKS,
) = range(len(ROW_COLUMNS))  # fmt: skip
ROW = len(ROW_COLUMNS)
# `entries` of the log: kind, and of a chunk row, request, tokens, end; of a setback row and request; of an episode of decoding the decode
# clock at its begin and end, and the offset
CHUNK, EPISODE, LOST_PLACE, LOST_PREFILL, LEFT_EARLY, CAME_BACK = range(6)
ENTRY = 5
ROW_MOST = 4096  # rows in memory before they are handed over


class Core(NamedTuple):
    """One replica's state. Prices (`chords`, `by_rows`, `heads`), `q` and `names` may be those of several replicas."""

    s: Ints  # [SCALARS]
    q: Ints  # [requests * REQUEST]
    w: Ints  # [places * SEAT]
    due: Ints  # [BLOCK] decodes that need a block when the clock, modulo the block size, is the index
    names: Ints  # names of blocks that several requests begin with, whole numbers from 0 on (see NAMES)
    ranks: Ints  # [2 * requests] priority, and place of the name among all; nothing where first come is first served
    arrival_s: Floats  # [requests] when clients sent them
    nodes: Ints  # [nodes * NODE]
    table: Ints  # [a power of two] nodes by name + 1, 0: none (sim.engine.core_kv.slot_of)
    held: Ints  # [SEQS * DEPTHS] nodes that a request holds, by its seat
    chords: Ints  # [2 * (batch * OCTAVES + octave)] ticks at both ends, -1 where not known yet
    by_rows: Floats  # [3 * rows] seconds of small kernels, of linear layers and of all-reduces; -1 where not known yet
    heads: Floats  # [rows of logits] seconds, -1 where not known yet
    rows: Ints  # [ROW_ROOM * ROW]
    entries: Ints  # [ENTRY_ROOM * ENTRY]


def make_core(
    config: EngineConfig,
    steps: StepTime,
    q: Any,
    names: Any,
    depths: int,
    ranks: Any = (),
    arrival_s: Any = (),
    *,
    keep: bool = False,
    arrays: bool = False,
) -> Core:
    """The state before the first arrival. `depths` is the most blocks of a request that others also begin with. `keep` keeps a log;
    `arrays` makes numpy arrays for the compiled loop.
    """
    seqs, blocks = config.max_num_seqs, config.num_gpu_blocks - 1
    row_room, entry_room = (ROW_MOST, ROW_MOST + 8 * seqs) if keep else (1, 1)
    depths *= config.enable_prefix_caching
    parts, whole = steps.parts, int(steps.whole)
    limits = (
        seqs, config.max_num_batched_tokens, config.block_size, blocks,
        int(config.watermark * config.num_gpu_blocks), config.enable_chunked_prefill, config.reserve_full_prompt,
        config.enable_prefix_caching, config.overlaps, config.policy == "priority", *steps.host_ticks, parts, whole, *steps.reread,
        keep, row_room, entry_room, depths, 1,
    )  # fmt: skip
    s = np.zeros(SCALARS, dtype=np.int64)
    s[: len(limits)] = limits
    s[FREE] = s[UNHASHED] = blocks
    s[[PARTIAL, QUEUE_HEAD, QUEUE_TAIL, OLDEST, NEWEST, NODE_FREE, PRICED]] = -1
    s[PHASE], s[WAKE], s[AFTER_ARRIVALS] = IDLE, NEVER, 1
    s[SEATS] = seqs
    w = np.zeros((2 * seqs + 2, SEAT), dtype=np.int64)
    w[:seqs, SEAT_AT] = np.arange(seqs)
    room = blocks if depths else 0
    rows = min(config.max_num_batched_tokens, blocks * config.block_size + seqs)  # of an iteration: all of them have KV, but the last ones
    columns: tuple[Any, ...] = (
        s,
        q,
        w.ravel(),
        np.zeros(config.block_size, dtype=np.int64),
        names,
        ranks,
        arrival_s,
        np.zeros(room * NODE, dtype=np.int64),
        np.zeros(1 << (2 * room).bit_length(), dtype=np.int64),
        np.zeros(seqs * depths, dtype=np.int64),
        np.full(2 * (seqs + 1) * OCTAVES, -1, dtype=np.int64),
        np.full(3 * (max(rows, GRAPH_TOKENS) + 1), -1.0),
        np.full(seqs + 1, -1.0),
        np.zeros(row_room * ROW, dtype=np.int64),
        np.zeros(entry_room * ENTRY, dtype=np.int64),
    )
    return Core(*(columns if arrays else map(_listed, Core._fields, columns)))


LISTS_UP_TO = 100_000
SPARSE = ("nodes", "table", "held")  # columns of which a run may touch little


def _listed(name: str, column: Any) -> Any:
    """The quicker of two plain sequences: lists, and arrays where they are long. Of a sparse one what is not touched takes no memory."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype != np.int64 or len(column) <= LISTS_UP_TO:
        return column.tolist()
    return column.data if name in SPARSE else array("q", column.tobytes())


def charged_in(s: Any, context: int, batch: int, chunks: int, shared_blocks: int, common_blocks: int) -> int:
    """`charged` in an iteration of `batch` decodes and so many chunks."""
    return charged(context, batch, batch + chunks, shared_blocks * s[BLOCK], common_blocks * s[BLOCK], s[SAVED], s[READ_BLOCKS])


def supply(core: Core, steps: StepTime, reason: int) -> None:
    """Fill in the price that the loop stopped for."""
    needed = int(core.s[NEEDED])
    if reason == NEEDS_CHORD:
        octave = int(core.s[NEEDED_OCTAVE])
        place = 2 * (needed * OCTAVES + octave)
        core.chords[place], core.chords[place + 1] = steps.chord(needed, octave)
    elif reason == NEEDS_ROWS:
        place = 3 * needed
        core.by_rows[place], core.by_rows[place + 1], core.by_rows[place + 2] = steps.rows(float(needed))
    elif reason == NEEDS_HEAD:
        core.heads[needed] = steps.head(float(needed))
    else:
        core.s[PRICED] = _price(core, steps)


def _price(core: Core, steps: StepTime) -> int:
    """Ticks of the iteration with prefill that is decided, where it is not computed in one part."""
    s, q, w = core.s, core.q, core.w
    batch, context, chunks = s[BATCH], s[CONTEXT], []
    for seat in range(0, s[SHARES] * SEAT, SEAT):
        request, tokens, start = w[seat + SHARE_AT], w[seat + SHARE_TOKENS_AT], w[seat + SHARE_START_AT]
        known = q[request + PROMPT] + q[request + GENERATED]
        if tokens == 1 and start >= q[request + PROMPT]:
            batch, context = batch + 1, context + start
        else:
            chunks.append((tokens, start + tokens, int(start + tokens == known)))
    context = charged_in(s, context, batch, len(chunks), s[WAS_SHARED], s[WAS_COMMON])
    return steps.mixed(batch, context, 0, context, chunks, max(s[ENDS] - s[DECIDES], 0))
