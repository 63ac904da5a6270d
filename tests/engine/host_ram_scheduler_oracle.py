"""Workloads with host RAM stepped through vLLM's scheduler and its OffloadingConnector, and through ours, as comparable decision logs.

Transfers take no time: loads of a decision are over with its iteration, writes with the one after it. Decisions that schedule nothing are
made again at once, as the engine core does while transfers are under way; a workload that STILL times in a row gets nothing ends as stuck.
"""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

from sim.engine.interface import Request
from sim.engine.schedulers import VllmScheduler
from sim.engine.speculative import Speculation
from sim.ticks import TICKS_PER_S
from tests.engine.vllm_oracle import (
    Ask,
    Recorder,
    Workload,
    agreed,
    agreed_by_row,
    block_hashes,
    deliver,
    engine_requests,
    engine_scheduler,
    installed,
    record_engine,
    started,
)

STILL = 20
STEP = TICKS_PER_S // 100
STUCK: list[Any] = ["stuck"]


def drawn(rng: Random) -> Workload:
    """Requests that come back to what was said, KV that is short, drafts, chunks and thresholds."""
    block = rng.choice([1, 4, 16])
    asks = [
        Ask(
            rng.choice([0, 0, 0, 1, 2, 7]),
            rng.randint(1, 10 * block + 3),
            rng.randint(1, 4 * block + 2),
            rng.randint(0, 2),
            rng.randint(0, 8) * block,
            follows=rng.choice([None, rng.randrange(i)]) if i else None,
        )
        for i in range(rng.randint(1, 16))
    ]
    workload = Workload({}, asks)
    longest, drafts = max(len(prompt) + len(output) for prompt, output in workload.conversations()), rng.choice([0, 0, 1, 3])
    least, seqs = -(-(longest + 3 * drafts + 2) // block) + 2, rng.randint(1, 8)
    options: dict[str, Any] = {"host_blocks": rng.choice([least, 3 * least, 1000])}
    if drafts:
        options |= {"draft_tokens": drafts, "drafter": rng.choice(["ngram", "draft_model"])}
    if rng.random() < 0.5:
        options["chunk_tokens"] = rng.choice([1, 2, 3]) * block
        if threshold := rng.choice([0, 2, 3]):
            options |= {"store_threshold": threshold, "max_tracker_size": rng.choice([5, 50, 64_000])}
    workload.limits = {
        "num_gpu_blocks": least + rng.choice([0, 1, 4, least, 400]),
        "block_size": block,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(rng.choice([16, 64, 300]), seqs * (2 + drafts) + 8),
        "max_model_len": longest + rng.choice([1, 5]),
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 7]) if longest > 7 else 0,
        "watermark": rng.choice([0.0, 0.0, 0.1]),
        "reserve_full_prompt": rng.random() < 0.5,
        "options": options,
        "engine_version": installed(),
        "prefill_schedule_interval": rng.choice([1, 1, 3]),
    }
    return workload


class _InOrder(dict[str, None]):
    """Requests that have finished, in that order: of a set, as the engine has it, the hashes say whose blocks count as used last."""

    def add(self, request_id: str) -> None:
        self[request_id] = None


class _Arrivals:
    """Requests that wait for the iterations before them."""

    def __init__(self, pending: list[tuple[int, Any]]) -> None:
        self.pending, self._wait, self.still = pending, pending[0][0], 0

    def now(self) -> list[Any]:
        """Those that come with the next decision; none where the one before scheduled nothing."""
        came: list[Any] = []
        while not self.still and self.pending and self._wait <= 0:
            came.append(self.pending.pop(0)[1])
            self._wait = self.pending[0][0] if self.pending else 0
        self._wait -= not self.still
        return came


def steps_of_ours(workload: Workload) -> list[list[Any]]:
    """One entry per decision that schedules something."""
    config, recorder, now = workload.config, Recorder(), 0
    scheduler, after = VllmScheduler(config), Speculation.of(config).unnamed_tokens
    scheduler.copies_take(0, 0, 0)
    told = zip(workload.asks, workload.conversations(), strict=True)
    arrivals = _Arrivals(
        [
            (ask.arrives, Request(str(i), float(i), len(prompt), ask.output, block_hashes(prompt + output, config.block_size, after)))
            for i, (ask, (prompt, output)) in enumerate(told)
        ]
    )
    with patch("sim.engine.rows.vllm.accepted", agreed_by_row):
        while arrivals.pending or scheduler.unfinished():
            for request in arrivals.now():
                scheduler.add(request)
            scheduler.at(now)
            iteration = scheduler.schedule()
            if iteration.scheduled:
                recorder.decided(scheduler, iteration)
                scheduler.launched(now, now, now + STEP)
                now += STEP
                scheduler.at(now)
                scheduler.complete(iteration)
            else:
                recorder.unseen(request.request_id for request in iteration.preempted)
            arrivals.still = 0 if iteration.scheduled or not scheduler.unfinished() else arrivals.still + 1
            if arrivals.still > STILL:
                return [*recorder.log, STUCK]
    return recorder.log


def steps_of_engine(workload: Workload) -> list[list[Any]]:
    """The engine's log in the form of `steps_of_ours`."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
    from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput

    limits, told = workload.config, workload.conversations()
    scheduler, drafting, recorder = engine_scheduler(limits), Speculation.of(limits).draft_tokens, Recorder()
    arrivals, writes = _Arrivals(engine_requests(workload, told)), dict[int, Any]()
    while arrivals.pending or scheduler.get_num_unfinished_requests():
        for request in arrivals.now():
            scheduler.add_request(request)
        out = scheduler.schedule()
        scheduler.finished_req_ids = _InOrder()
        record_engine(recorder, scheduler, out, always=False)
        ids, loads, blind = list(out.num_scheduled_tokens), out.kv_connector_metadata.load_jobs, started(out)
        tokens = []
        for each in ids:
            produced, at = told[int(each)][1], scheduler.requests[each].num_output_tokens
            drafts = () if each in blind else out.scheduled_spec_decode_tokens.get(each, ())
            kept = agreed(int(each), at, len(drafts)) if drafts else 0
            longer = produced + [produced[-1]] * kept  # past the last token that was asked for the engine cuts what it is given
            tokens.append([] if scheduler.requests[each].is_prefill_chunk else longer[at : at + 1 + kept])
        over = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys((*writes, *loads), 1))
        writes = out.kv_connector_metadata.store_jobs
        moved = KVConnectorOutput(finished_recving={job.req_id for job in loads.values()}, kv_connector_worker_meta=over)
        deliver(scheduler, out, ids, tokens, moved)
        if drafting:
            scheduler.update_draft_token_ids(DraftTokenIds(ids, [[3] * drafting for _ in ids]))
        arrivals.still = 0 if ids or not scheduler.get_num_unfinished_requests() else arrivals.still + 1
        if arrivals.still > STILL:
            return [*recorder.log, STUCK]
    return recorder.log
