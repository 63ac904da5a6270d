"""The engine in rows, made of a configuration and its prices: the state before the first arrival."""

from __future__ import annotations

import zlib
from functools import cache
from itertools import count
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from sim.cost.coefficients import Coefficients
from sim.cost.graphs import GRAPH_TOKENS
from sim.engine.config import EngineConfig
from sim.engine.host_tier import HostTier
from sim.engine.interface import Request
from sim.engine.llamacpp_options import LlamaCppOptions
from sim.engine.rows import layout as at
from sim.engine.rows.layout import Core, Lazily, Noughts
from sim.engine.rows.micro_batches import most_micro_batches
from sim.engine.rows.price import Given
from sim.engine.sglang_options import SglangOptions
from sim.engine.speculative import Speculation
from sim.engine.step_clock import DECODE_PIECES, StepTime
from sim.engine.versions import rules_of
from sim.errors import SimctlError
from sim.ticks import TOO_LONG

Ints = NDArray[np.int64]
ROW_MOST = 4096  # iterations in memory before they are handed over
LOADING = 4  # times as many requests as can run, at most, have or get their KV: beyond these none is loaded
SLOT = 2  # numbers of a slot of llama.cpp: the request + 1 whose prompt it has, and when that was done
ENDINGS = 4  # numbers a request: SGLang lists when up to one more of them than can run end, and what they hold
_POLICY = ("on_host", "overlap", "selects", "unit_tokens", "k")
_adapters = count(1)
_COEFFICIENTS = [name for name, kind in get_type_hints(Coefficients).items() if kind in (float, int)]


def uncovered(config: EngineConfig) -> str:
    """Why the engine in rows cannot stand for this one; nothing where it can."""
    return "" if config.scheduler in _OF_KIND else f"engine {config.scheduler}"


def engine_row(config: EngineConfig, steps: StepTime | None, most_tokens: int, keep: bool) -> Any:
    """One replica before the first arrival."""
    s = at.EngineRow()
    s.seqs, s.budget, s.block = config.max_num_seqs, config.max_num_batched_tokens, config.block_size
    s.watermark = int(config.watermark * config.num_gpu_blocks)
    s.chunked, s.reserve, s.caching = int(config.enable_chunked_prefill), int(config.reserve_full_prompt), int(config.enable_prefix_caching)
    s.overlap, s.ranked, s.max_len = int(config.overlaps), int(config.policy == "priority"), config.max_model_len
    s.threshold, s.interval = config.long_prefill_token_threshold, config.prefill_schedule_interval
    s.latest_prefill = -s.interval
    s.keep = int(keep)
    _OF_KIND[config.scheduler](s, config)
    if steps is not None:
        take_prices(s, steps)
    plain = not (s.kind or s.drafting or s.ranked or s.keep or s.threshold) and s.interval == 1 and s.counts_running >= min(s.adapters, 1)
    s.settles = int(plain and s.jumps and s.budget > s.seqs)  # a chunk leaves the requests behind it their tokens
    s.free = s.blank = config.num_gpu_blocks - 1
    s.seats = config.max_num_seqs * (LOADING if s.host_chunks else 1)
    if s.kind:
        s.most_blocks = ENDINGS if s.kind == at.SGLANG else SLOT
    else:
        s.most_blocks = -(-min(most_tokens + 2 * s.drafting + 2, config.max_model_len) // s.block) + 1
    s.row_room, s.entry_room = (ROW_MOST + s.most_rows, ROW_MOST + 16 * s.seqs) if keep else (0, 0)
    return s


def take_prices(s: at.EngineRow, steps: StepTime) -> None:
    """Note what an engine's iterations are priced with."""
    s.jumps, s.window, s.parts, s.stages = int(steps.jumps), steps.model.window or 0, steps.parts, steps.stages
    s.plain, s.kept = int(steps.policy.plain), 0 if steps.policy.kind == "dense" else int(steps.policy.keep_tokens)
    s.host_each, s.host_sequence, s.host_prefill, s.launching, s.launching_pieces, s.launching_decodes = steps.host_ticks
    s.saved, s.read_blocks = steps.reread
    s.eager, s.graph_reuse, s.decode_pieces = int(steps.eager), int(steps.graph_reuse), DECODE_PIECES * steps.decode_pieces
    s.decodes_alone, s.largest_graph = int(steps.decodes_alone), steps.largest_graph
    s.verify_s, s.verify_each_s = steps.verify_s, steps.verify_seq_s
    if steps.draft is not None:
        s.draft_model, s.draft_pieces, s.draft_window = 1, int(steps.draft_pieces), steps.draft.model.window or 0
    block, s.load_ticks, s.load_latency = steps.host_link
    s.write_ticks = s.chunk * block
    s.part_tokens = steps.part_tokens
    s.micro_batch, s.cuts = steps.micro_batch, at.STREAMS if steps.streams else at.EQUAL if steps.model.state_layers else at.FILLED
    s.most_rows = most_micro_batches(s) if s.micro_batch else 1


def _vllm(s: at.EngineRow, config: EngineConfig) -> None:
    speculation, rules = Speculation.of(config), rules_of(config.engine_version)
    s.goes_on, s.remembers_samples, s.counts_running = int(rules.goes_on), int(rules.remembers_samples), int(rules.counts_running)
    s.adapters = config.max_loras
    s.unnamed, s.drops_last_hit = speculation.unnamed_tokens, int(speculation.drops_last_hit)
    s.drafting, s.lookahead, s.drafter_rows = speculation.draft_tokens, speculation.lookahead_tokens, speculation.drafter_rows
    s.seed = speculation.seed & 0xFFFFFFFF
    tier = HostTier.of(config)
    s.chunk, s.chunk_tokens = tier.chunk, tier.chunk * config.block_size
    s.host_chunks = s.host_blank = tier.blocks // tier.chunk
    s.least_offers, s.most_counted = tier.store_threshold, tier.max_tracker_size if tier.store_threshold > 1 else 0


def _sglang(s: at.EngineRow, config: EngineConfig) -> None:
    options = SglangOptions.of(config)
    s.kind, s.overlap, s.chunked_prefill = at.SGLANG, int(options.overlap_schedule), int(config.enable_chunked_prefill)
    s.most_prefill, s.clip, s.retract_steps = options.max_prefill_tokens, options.clip_new_tokens, options.retract_decode_steps
    s.first_ratio = s.ratio = options.init_new_token_ratio
    s.least_ratio = options.min_new_token_ratio
    s.ratio_step = (options.init_new_token_ratio - options.min_new_token_ratio) / options.ratio_decay_steps
    s.ignores_end, s.by_prefix = int(options.ignore_eos), int(options.schedule_policy == "lpm")
    s.unused = config.num_gpu_blocks - 1


def _llamacpp(s: at.EngineRow, config: EngineConfig) -> None:
    options = LlamaCppOptions.of(config)
    s.kind, s.budget = at.LLAMACPP, options.max_batch_tokens or config.max_num_batched_tokens
    s.prompt_tail, s.prefill_cap = options.prompt_tail_tokens, options.prefill_cap
    s.prefill_first, s.max_defer, s.min_waiting = int(options.prefill_first), options.max_defer, options.min_waiting
    s.similarity = options.slot_similarity


_OF_KIND = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}


def make_core(
    config: EngineConfig,
    steps: StepTime | None,
    requests: NDArray[Any],
    names: Any,
    *,
    replicas: int = 1,
    most_tokens: int | None = None,
    keep: bool = False,
    arrays: bool = False,
    token_ticks: int = 0,
    warm: Ints | None = None,
) -> Core:
    """Replicas before the first arrival of `requests` (records of layout.RequestRow). `most_tokens` is the most of one; `keep` keeps a
    log; without `steps` nothing can be priced; `arrays` makes numpy arrays for the compiled loop; `token_ticks` are of the API server,
    per token. Every replica begins with blocks of the first names of `warm` in its cache, as many as that holds.
    """
    if most_tokens is None:
        most_tokens = int((requests["prompt"] + requests["output"]).max(initial=1))
    seqs, blocks = config.max_num_seqs, config.num_gpu_blocks - 1
    one = engine_row(config, steps, most_tokens, keep)
    slots = 1 << (2 * blocks).bit_length() if config.enable_prefix_caching and one.kind != at.LLAMACPP else 1
    host_slots, count_slots = (1 << (2 * most).bit_length() if most else 0 for most in (one.host_chunks, one.most_counted))
    one.mask, one.host_mask, one.count_mask, one.token_ticks = slots - 1, host_slots - 1, count_slots - 1, token_ticks
    if one.host_chunks:
        requests["seen"] = np.cumsum(requests["depth"]) - requests["depth"]
    most = one.budget if one.kind == at.VLLM or one.chunked_prefill else one.most_prefill + one.max_len  # tokens of an iteration
    cut = one.parts > 1 or one.micro_batch
    room = seqs + one.parts + (most // one.part_tokens if one.part_tokens else 0) if cut else 0  # chunks, cut
    engines = np.array([tuple(getattr(one, name) for name in one.__slots__)] * replicas, dtype=at.dtype_of(at.EngineRow))
    i = np.arange(replicas)
    places = {
        "first_block": i * blocks, "end_block": (i + 1) * blocks, "fresh": i * blocks, "first_slot": i * slots,
        "first_running": i * (seqs + one.seats), "first_held": i * one.seats * one.most_blocks, "first_share": 2 * i * (seqs + 1),
        "first_piece": i * room, "first_phase": i * one.block,
        "first_chunk": i * one.host_chunks, "next_chunk": i * one.host_chunks, "first_host_slot": replicas * slots + i * host_slots,
        "first_count": i * one.most_counted, "first_count_slot": replicas * (slots + host_slots) + i * count_slots,
        "first_send": 2 * i * seqs, "first_iteration": 2 * i, "first_row": i * one.row_room, "first_entry": i * one.entry_room,
        "root": i * (blocks + 1), "next_node": i * (blocks + 1) + 1,
    }  # fmt: skip
    for name, begins in places.items():
        engines[name] = begins
    counts = {
        "pieces": replicas * room, "iterations": 2 * replicas, "shares": 2 * replicas * (seqs + 1), "sends": 2 * replicas * seqs,
        "blocks": 0 if one.kind else replicas * blocks, "nodes": replicas * (blocks + 1) if one.kind == at.SGLANG else 0,
        "chunks": replicas * one.host_chunks, "counts": replicas * one.most_counted, "log": replicas * one.row_room,
        "entries": replicas * one.entry_room,
    }  # fmt: skip
    chances = Speculation.of(config).position_probability if one.drafting else float
    acceptance = np.array([chances(place) for place in range(one.drafting)])
    padding = steps.decode_paddings(seqs) if steps else np.zeros(0)
    running: Any = np.zeros((replicas, seqs + one.seats), dtype=np.int64)
    running[:, seqs:] = np.arange(one.seats)
    if one.kind == at.LLAMACPP:
        running[:, :seqs] = at.NOBODY
    most_rows = min(most, one.micro_batch or blocks * config.block_size)  # all of them have KV, but the last ones
    rows = max(most_rows + seqs * (1 + one.drafting), GRAPH_TOKENS) + 1
    logits = seqs * (1 + one.drafting) + 1
    prices: dict[str, Any] = {
        "chords": np.full((seqs + 1) * at.OCTAVES, -1, dtype=np.int64), "by_rows": np.full(3 * rows, -1.0), "heads": np.full(logits, -1.0),
        "draft_by_rows": np.full(3 * rows if one.draft_model else 0, -1.0), "draft_heads": np.full(logits if one.draft_model else 0, -1.0),
        "acceptance": acceptance, "padding": padding, "phases": np.zeros(replicas * one.block, dtype=np.int64),
    }  # fmt: skip
    ranks = steps is not None and one.parts > one.stages
    experts = steps.expert_works((rows + GRAPH_TOKENS) * one.stages).ravel() if steps and ranks else np.zeros(0)
    works = {"row_works": steps, "draft_row_works": steps.draft if steps and one.draft_model else None}
    tables: dict[str, Any] = {name: of.row_works(rows).ravel() if of else np.zeros(0) for name, of in works.items()}
    tables["expert_works"] = experts
    held, table = replicas * one.seats * one.most_blocks, replicas * (slots + host_slots + count_slots)
    begins_with = np.zeros(0, dtype=np.int64) if warm is None or not one.caching else warm[:blocks]
    kept, at_slots = _begin_with(engines, begins_with, one.mask)
    if arrays:
        made: dict[str, Any] = {name: at.records(at.ROWS[name], count) for name, count in counts.items()}
        made["engines"] = engines
        if at_slots:
            made["blocks"][kept["place"]] = kept["row"]
        made["seen"] = np.zeros(int(requests["depth"].sum()) if one.host_chunks else 0, dtype=np.int8)
        made |= {"requests": requests, "held": np.zeros(held, dtype=np.int64), "table": np.zeros(table, dtype=np.int64)}
        made["table"][list(at_slots)] = list(at_slots.values())
        return Core(**made, **prices, **tables, names=names, running=running.ravel())
    lazily: dict[str, Any] = {name: Lazily(at.ROWS[name]) for name in counts}
    lazily |= {
        "engines": at.objects(engines, at.EngineRow),
        "requests": at.objects(requests, at.RequestRow),
        "held": Noughts(),
        "table": Noughts(),
        "seen": Noughts(),
    }
    lazily["table"].update(at_slots)
    for place, row in kept.tolist():
        lazily["blocks"][place] = at.BlockRow(*row)
    listed = {name: column.tolist() for name, column in prices.items()} | {name: each.data for name, each in tables.items()}
    return Core(**lazily, **listed, names=names.tolist(), running=running.ravel().tolist())


def _begin_with(engines: NDArray[Any], warm: Ints, mask: int) -> tuple[NDArray[Any], dict[int, int]]:
    """Contents that replicas of vLLM have before the first arrival and nobody holds, the last of `warm` evicted first: places and rows of
    blocks, and numbers at places of the table. Notes in `engines` what that makes of them.
    """
    count, slots = len(warm), dict[int, int]()
    homes = (((warm + 1) * 0x9E3779B1 >> 7) & mask).tolist()
    for block, slot in zip(range(count - 1, -1, -1), homes, strict=True):
        while slot in slots:
            slot = (slot + 1) & mask
        slots[slot] = block
    one = at.records(at.BlockRow, count)
    one["count"], one["name"], one["copy"], one["request"] = 1, warm[::-1] + 1, at.NOBODY, at.NOBODY
    places, found = dict[int, int](), np.zeros(len(engines) * count, dtype=[("place", np.int64), ("row", one.dtype)])
    for replica, s in enumerate(engines if count else ()):
        begin, mine = int(s["first_block"]), found[replica * count : (replica + 1) * count]
        one["before"], one["behind"] = begin + np.arange(count) - 1, begin + np.arange(count) + 1
        one["before"][0] = one["behind"][-1] = at.NOBODY
        mine["place"], mine["row"] = begin + np.arange(count), one
        s["oldest"], s["newest"], s["fresh"], s["blank"] = begin, begin + count - 1, begin + count, s["blank"] - count
        places |= {int(s["first_slot"]) + slot: begin + block + 1 for slot, block in slots.items()}
    return found, places


def requests_of(arrives: Ints, prompt: Ints, output: Ints) -> NDArray[Any]:
    """Requests before they come, as records of layout.RequestRow."""
    found = at.records(at.RequestRow, len(arrives))
    found["arrives"], found["prompt"], found["output"] = arrives, prompt, output
    return found


def row_of_request(request: Request, lucky: bool) -> at.RequestRow:
    """A request that is seen for the first time."""
    row = at.RequestRow(prompt=request.prompt_tokens, arrival_s=request.arrival_s, priority=request.priority)
    row.luck, row.adapter = luck_of([request.request_id])[0] if lucky else 0, adapter_number(request.adapter) if request.adapter else 0
    return row


@cache
def adapter_number(_name: str) -> int:
    """A number from 1 on for each name."""
    return next(_adapters)


def bring(row: Any, request: Request) -> None:
    """A request comes, seen perhaps when a router looked at it: fresh, or with what another replica has done for it."""
    row.comes_with, row.output = request.computed_tokens, request.output_tokens
    row.generated, row.preemptions = request.generated_tokens, request.preemptions


def luck_of(request_ids: Any) -> list[int]:
    """32 bits that draws of each request hang on."""
    return [zlib.crc32(each.encode()) for each in request_ids]


def fail(s: Any, reason: int) -> None:
    """Raise what the loop stopped for: SimctlError where requests wait, and none can run; OverflowError for more than MOST_TICKS."""
    if reason == at.STUCK:
        raise SimctlError(f"the scheduler is stuck: {s.queued + s.running} requests and none can run")
    raise OverflowError(TOO_LONG)


def given_of(steps: StepTime, arrays: bool = False) -> Given:
    """Inputs of the formula; with `arrays` as records, whose type compiled code knows at a glance."""
    given = *steps.given, *(steps.draft or steps).given
    return Given(*(map(_record, (_COEFFICIENTS, given[1].names(), _POLICY) * 2, given) if arrays else given))


def _record(names: Any, values: Any) -> Any:
    """Numbers by name as a numpy record."""
    columns = tuple(names)
    return np.array(tuple(float(getattr(values, name)) for name in columns), dtype=_floats(columns))[()]


@cache
def _floats(names: tuple[str, ...]) -> np.dtype[Any]:
    return np.dtype((np.record, [(name, np.float64) for name in names]))
