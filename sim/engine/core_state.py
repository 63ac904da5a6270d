"""State of the array engine (sim.engine.core): what its columns and places mean, and how they are made.

Columns are lists in plain Python and numpy arrays where the loop is compiled; both are indexed alike.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import numpy as np

from sim.cost.graphs import GRAPH_TOKENS
from sim.cost.iteration import StepTime
from sim.engine.config import EngineConfig

Ints = list[int]  # or an int64 array
Floats = list[float]

# `s`: limits, which do not change in a run
_places = count()
REQUESTS, SEQS, BUDGET, BLOCK, BLOCKS, WATERMARK, CHUNKED, RESERVE, CACHING, OVERLAP = (next(_places) for _ in range(10))
HOST_EACH, HOST_SEQUENCE, HOST_PREFILL, LAUNCHING, LAUNCHING_PIECES, KEEP, ROW_ROOM, ENTRY_ROOM = (next(_places) for _ in range(8))
# and what does
PHASE, NOW, NEXT_ARRIVAL, QUEUE_HEAD, QUEUE_TAIL, QUEUED, RUNNING, BATCH, CONTEXT, CLOCK = (next(_places) for _ in range(10))
ADMISSIONS, PARTIAL, PARTIAL_DONE, LEAVING, SHARES, DECODING = (next(_places) for _ in range(6))
FREE, UNHASHED, RUN_HEAD, RUN_TAIL = (next(_places) for _ in range(4))
DECIDES, ENDS, UNDER_WAY, UNSENT, SENDING, SENDS_AT = (next(_places) for _ in range(6))
PLANNED, PLAN_ENDS, OPEN, ORIGIN, FIRST, INCREMENT = (next(_places) for _ in range(6))
NEEDED, NEEDED_OCTAVE, START, TOKENS, OWN = (next(_places) for _ in range(5))
WAS_RUNNING, WAS_USED, ADMITTED, PREEMPTED, REQUEUED, LACKS, ROWS, ENTRIES = (next(_places) for _ in range(8))
SCALARS = next(_places)

# `q`: a request's numbers, REQUEST of them one after the other; a request is named by where they begin
_places = count()
ARRIVES, PROMPT, OUTPUT = (next(_places) for _ in range(3))  # ticks, ascending; tokens
GENERATED, ADMISSION, PREEMPTIONS = (next(_places) for _ in range(3))  # tokens at the latest admission or preemption; number of that
OFFSET, BEGAN, FINISHES = (
    next(_places) for _ in range(3)
)  # of a decode: computed tokens less the decode clock; clock then, and at the end
COMPUTED = next(_places)  # tokens of a request that is leaving; 0: it is not
BEHIND = next(_places)  # the next in the queue
RUN, RUN_BEFORE, RUN_AFTER = (next(_places) for _ in range(3))  # free blocks with its contents; whose are evicted before and after them
SCHEDULED, FIRST_SENT, FIRST_PLACE, LAST_SENT, LAST_PLACE = (next(_places) for _ in range(5))  # ticks, and places in the iteration
REQUEST = next(_places)

# `w`: lists of requests, of which the first so many hold
_places = count()
RUNNING_AT, HEAP_AT, LEAVING_AT = (next(_places) for _ in range(3))  # in order of admission; decodes, the first to finish on top
SHARE_AT, SHARE_TOKENS_AT, SHARE_START_AT = (next(_places) for _ in range(3))  # prefill of the iteration that is decided
UNSENT_AT, UNSENT_PLACE_AT, UNSENT_LAST_AT = (next(_places) for _ in range(3))  # first and last tokens of the iteration under way
SENDING_AT, SENDING_PLACE_AT, SENDING_LAST_AT = (next(_places) for _ in range(3))  # the same of tokens that are sent at SENDS_AT
SEAT = next(_places)

# phases: what the loop does next
DECIDE, MIXED, JUMP, SEND, PASS, NEXT = range(6)
# why it returns
DONE, NEEDS_CHORD, NEEDS_ROWS, NEEDS_HEAD, NEEDS_ROOM, TOO_LATE = range(6)

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
    R_SHARES, R_TOKENS, R_CHUNKS, R_CHUNK_TOKENS, R_CHUNK_CONTEXT, R_CHUNK_PAIRS, R_CHUNK_SAMPLED, R_SAMPLED, R_FRESH, R_RUNNING, R_USED,
    R_LEFT, R_ADMITTED, R_PREEMPTED, R_REQUEUED, R_LACKS,
) = range(len(ROW_COLUMNS))  # fmt: skip
ROW = len(ROW_COLUMNS)
# `entries` of the log: kind, and of a chunk row, request, tokens, end; of a setback row and request; of an episode of decoding the decode
# clock at its begin and end, and the offset
CHUNK, EPISODE, LOST_PLACE, LOST_PREFILL, LEFT_EARLY, CAME_BACK = range(6)
ENTRY = 5
ROW_MOST = 4096  # rows in memory before they are handed over


class Core(NamedTuple):
    """One replica's state."""

    s: Ints  # [SCALARS]
    q: Ints  # [requests * REQUEST]
    w: Ints  # [places * SEAT]
    due: Ints  # [BLOCK] decodes that need a block when the clock, modulo the block size, is the index
    chords: Ints  # [2 * (batch * OCTAVES + octave)] ticks at both ends, -1 where not known yet
    by_rows: Floats  # [2 * rows] seconds of linear layers and small kernels, and of all-reduces; -1 where not known yet
    heads: Floats  # [rows of logits] seconds, -1 where not known yet
    rows: Ints  # [ROW_ROOM * ROW]
    entries: Ints  # [ENTRY_ROOM * ENTRY]


def make_core(config: EngineConfig, steps: StepTime, arrives: Any, prompt: Any, output: Any, *, keep: bool, arrays: bool) -> Core:
    """The state before the first arrival: int64 arrays [request] of ticks, prompt and output tokens. `keep` keeps a log; `arrays` makes
    numpy arrays for the compiled loop, not lists.
    """
    n, seqs = len(arrives), config.max_num_seqs
    row_room, entry_room = (ROW_MOST, ROW_MOST + 8 * seqs) if keep else (1, 1)
    q = np.zeros((n, REQUEST), dtype=np.int64)
    q[:, ARRIVES], q[:, PROMPT], q[:, OUTPUT] = arrives, prompt, output
    for column in (SCHEDULED, FIRST_SENT, LAST_SENT, ADMISSION):
        q[:, column] = -1
    limits = (
        n * REQUEST, seqs, config.max_num_batched_tokens, config.block_size, config.num_gpu_blocks - 1,
        int(config.watermark * config.num_gpu_blocks), config.enable_chunked_prefill, config.reserve_full_prompt,
        config.enable_prefix_caching, config.overlaps, *steps.host_ticks, keep, row_room, entry_room,
    )  # fmt: skip
    s = np.zeros(SCALARS, dtype=np.int64)
    s[: len(limits)] = limits
    s[FREE] = s[UNHASHED] = config.num_gpu_blocks - 1
    s[[PARTIAL, QUEUE_HEAD, QUEUE_TAIL, RUN_HEAD, RUN_TAIL]] = -1
    columns = (
        s,
        q.ravel(),
        np.zeros((2 * seqs + 2) * SEAT, dtype=np.int64),
        np.zeros(config.block_size, dtype=np.int64),
        np.full(2 * (seqs + 1) * OCTAVES, -1, dtype=np.int64),
        np.full(2 * (max(config.max_num_batched_tokens, GRAPH_TOKENS) + 1), -1.0),
        np.full(seqs + 1, -1.0),
        np.zeros(row_room * ROW, dtype=np.int64),
        np.zeros(entry_room * ENTRY, dtype=np.int64),
    )
    return Core(*(columns if arrays else (column.tolist() for column in columns)))


def supply(core: Core, steps: StepTime, reason: int) -> None:
    """Fill in the price that the loop stopped for."""
    needed = int(core.s[NEEDED])
    if reason == NEEDS_CHORD:
        octave = int(core.s[NEEDED_OCTAVE])
        place = 2 * (needed * OCTAVES + octave)
        core.chords[place], core.chords[place + 1] = steps.chord(needed, octave)
    elif reason == NEEDS_ROWS:
        core.by_rows[2 * needed], core.by_rows[2 * needed + 1] = steps.rows(float(needed))
    else:
        core.heads[needed] = steps.head(float(needed))
