"""served: a real server under load. A closed-loop ladder, open-loop Poisson streams, multi-turn sessions, a KV-starved burst.

Protocol (served/10). One experiment is one batch of streams; a stream that fails voids its batch, and a void batch is kept and
marked, never averaged. A wave of the ladder sends N distinct prompts at once; its decode throughput is read in the true-decode
window. At the end the open loops are sent again, on the same server, and sessions and the closed loop three times more
(hw.suites.served_plan). Before the first experiment the server answers warm-up waves of every prompt length to come, the longest of the
open loops among them, and single prompts of lengths between, which are not recorded: kernels of experts are compiled as sizes come up,
while every stream waits for seconds (up to version 8 the first loads met that). While an experiment runs, clock and power of a GPU of
this machine are read beside it, and a server of our own can be made to write down its iterations (hw.serve.recording). With the text
client the plan is hw.suites.served_plan.text_plan.
Files of version 6 say by name alone which prompts were text, those of version 5 have no replicate column, and those before do not say
when an experiment began.
"""

from __future__ import annotations

import asyncio
import math
import shlex
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from hw import machine
from hw.artifact import table
from hw.engines import sglang_server, vllm_fleet, vllm_server
from hw.engines.shapes import engine_flags, routed, shape
from hw.engines.vllm_server import RunningServer
from hw.journal import Journal
from hw.pace import Budget, paced, summarize
from hw.serve import load_patterns as load
from hw.serve import windows
from hw.serve.client import ServedRequest, Target, complete
from hw.serve.identify import counters, describe
from hw.serve.recording import by_experiment, variables
from hw.suites import served_plan as plans
from hw.suites.served_plan import PlannedLoad
from sim.errors import SimctlError, UsageError

PROTOCOL = "served/10"
# The burst asks for more KV than its server has, in requests that outgrow their first blocks: it must queue and preempt.
# cuda: 1024 blocks of 16 tokens for 48 x (1024 + 128); cpu: 12 blocks of 128 tokens for 24 x (96 + 64).
STARVED_BLOCKS = {"cuda": 1024, "cpu": 12}
BLOCK_TOKENS = 16  # of vLLM's blocks on a GPU
BETWEEN = tuple(tokens + odd for tokens in (96, 192, 384, 768, 1536, 3072) for odd in (0, 1))  # prompt tokens: warm-up
WARM_MOST = 100_000  # prompt tokens of a warm-up wave: longer prompts are read in the same chunks, for minutes
BURST = {"cuda": (48, 1024, 128), "cpu": (24, 96, 64)}  # requests, prompt tokens, output tokens
# Above every prompt of a phase and below the KV of the starved server. Equal for both on a GPU: the second server reuses the compilation.
MAX_MODEL_LEN = {("cuda", "plan"): 8192, ("cuda", "starved"): 8192, ("cpu", "plan"): None, ("cpu", "starved"): 1024,
                 ("cuda", "text"): 32768, ("cpu", "text"): None}  # fmt: skip
REQUEST = {
    "experiment_index": ("index into the experiment dimension", "1"),
    "session": ("client or session within the experiment; -1 for none", "1"),
    "turn": ("request number within it", "1"),
    "arrival_s": ("when the client sent it, from the experiment's first send", "s"),
    "prompt_tokens": ("tokens of the prompt", "tokens"),
    "output_tokens": ("tokens received", "tokens"),
    "asked_tokens": ("tokens asked for", "tokens"),
    "cached_tokens": ("prompt tokens the server says it had cached; NaN if it says nothing, as vLLM does for none", "tokens"),
    "first_token_s": ("time to first token after arrival", "s"),
    "finish_s": ("end-to-end latency after arrival", "s"),
    "itl_median_s": ("median gap between tokens", "s"),
    "itl_max_s": ("longest gap between tokens", "s"),
    "ok": ("complete", "bool"),
    "error": ("what went wrong", ""),
}
TOKEN_REQUEST = "place along request of the one that the token belongs to; tokens as they came, experiment by experiment"
TOKEN_WAIT = "since the token before of any request, an experiment's first token's since its first send"
WAIT_S = 1e-6  # unit of token_wait_us
EXPERIMENT = {
    "name": ("experiment", ""),
    "kind": ("ladder, closed, open, sessions or burst", ""),
    "n": ("streams at once (ladder, closed, sessions), requests (open, burst)", "1"),
    "rate_per_s": ("offered arrival rate of an open loop", "1/s"),
    "text": ("whether prompts were text; absent up to protocol served/6, where names of such begin so", "bool"),
    "replicate": ("how often the same arrivals and sizes were sent before; absent up to protocol served/5", "1"),
    "prompt_tokens_asked": ("prompt tokens, or their median", "tokens"),
    "shared_tokens": ("tokens that every prompt begins with; absent up to protocol served/7", "tokens"),
    "documents": ("such texts of each client, sent by turns; 0: one for all; absent up to protocol served/9", "1"),
    "output_tokens_asked": ("output tokens, or their median", "tokens"),
    "void": ("why the batch must not be used; empty if it may", ""),
    "requests": ("requests sent", "1"),
    "began_unix_s": ("this machine's clock before its first request was sent", "s"),
    "duration_s": ("first send to last token", "s"),
    "memory_before_mib": ("memory of the GPU in use before its first request was sent; absent in files before 2026-11-28", "MiB"),
    "memory_after_mib": ("and after its last token", "MiB"),
    "ttft_s_median": ("median time to first token", "s"),
    "ttft_s_p25": ("lower quartile", "s"),
    "ttft_s_p75": ("upper quartile", "s"),
    "window_tokens_per_s": ("throughput in the true-decode window", "tokens/s"),
    "window_step_s": ("mean time per token of a stream in the window", "s"),
    "window_s": ("length of the window", "s"),
    **machine.CLOCKS,
}


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """The plan on one server, the burst on a second one with little KV; or the plan on a running server, by URL."""
    attrs["client"] = "vllm bench serve, text; token ids" if job.client == "text" else "token ids"
    if job.url:
        _by_url(job, journal, attrs)
        return
    vocab = shape(job.model)["vocab_size"]
    phases: dict[str, list[str]] = {"plan": []}
    if job.client == "tokens" and job.replicas == 1:
        phases["starved"] = ["--num-gpu-blocks-override", str(STARVED_BLOCKS[job.device])]
    if job.engine == "sglang":  # its KV cache is of tokens
        phases["starved"] = ["--max-total-tokens", str(BLOCK_TOKENS * STARVED_BLOCKS[job.device])]
    chosen = chosen_of({e.name for phase in phases for e in work_of(phase, vocab, job)}, job)
    log = iterations_log(journal)
    if not journal.records:
        log.unlink(missing_ok=True)  # of a run that is not gone on with
    for phase, flags in phases.items():
        lengths = {e.name: e.prompt_tokens for e in work_of(phase, vocab, job) if e.name in chosen}
        if all(name in journal for name in lengths):
            continue
        longest = max(lengths.values())
        with tempfile.TemporaryDirectory() as folder, _server(job, Path(folder), phase, longest, flags, journal, log) as server:
            attrs |= {f"{phase}_{k}": v for k, v in server.facts.items()}
            target = Target(server.url, server.model, temperature=1.0 if routed(shape(job.model)) else 0.0, adapters=server.adapters)
            tokenizer = (server.folder or Path()) / "tokenizer"
            work = [e for e in work_of(phase, vocab, job, tokenizer, journal.path.parent) if e.name in chosen]
            attrs[f"finished_{phase}"] = measure(work, target, vocab, journal, Budget(job.budget_s), job.stem)["finished"]
            attrs |= {f"{phase}_{k}": v for k, v in asyncio.run(counters(target)).items()}
    attrs["finished"] = int(all(name in journal for name in chosen))
    attrs["iterations_log"] = str(log) if log.is_file() else ""


def _server(
    job: Any, folder: Path, phase: str, longest: int, flags: list[str], journal: Journal, iterations: Path
) -> AbstractContextManager[RunningServer]:
    arguments: dict[str, Any] = {"flags": [*_flags(job), *flags], "log": journal.path.with_name(f"{job.stem}.{phase}.log")}
    room, text = MAX_MODEL_LEN[job.device, phase], MAX_MODEL_LEN[job.device, "text"]
    room = text if job.client == "text" or (room and longest > room) else room
    arguments |= {"max_model_len": None if room and longest > room else room}  # None: the model's own
    arguments |= {"quantization": job.quantization}
    if job.engine == "sglang":
        return sglang_server.serve(job.model, folder, **arguments)
    if job.replicas > 1:
        of = {"replicas": job.replicas, "prefill": job.prefill, "tensor_parallel": job.tensor_parallel}
        return vllm_fleet.serve(job.model, folder, **of, **arguments)
    return vllm_server.serve(job.model, folder, device=job.device, iterations=iterations if job.iterations else None, **arguments)


def _by_url(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """Identity of a server by URL, from its answers. Raises SimctlError with its words when it does not complete one short prompt."""
    chat, text = job.endpoint == "chat", job.prompts == "text"
    target = Target(job.url, job.model, text=text, chat=chat, headers=job.headers)
    attrs |= {"client": "text" if text else "token ids", "endpoint": job.endpoint}
    work = work_of("plan", job.vocab_size, job)
    chosen = chosen_of({e.name for e in work}, job)
    attrs |= asyncio.run(describe(target)) | {"path": "served", "model": job.model, "vocab_size": job.vocab_size, "plan_size": job.device}
    if error := asyncio.run(complete(target, load.Prompts(job.vocab_size, job.seed).draw(0, 16), 4)).error:
        raise SimctlError(f"{job.url}: {error}")
    work = [e for e in work if e.name in chosen]
    attrs |= measure(work, target, job.vocab_size, journal, Budget(job.budget_s), job.stem, local=False)


def work_of(phase: str, vocab: int, job: Any, tokenizer: Path = Path(), keep: Path = Path()) -> list[PlannedLoad]:
    """The experiments of a phase, each phase being a server of its own."""
    sizing = plans.GPU_PLAN if job.device == "cuda" else plans.CPU_PLAN
    if phase == "starved":
        return [plans.burst(vocab, job.seed, *BURST[job.device])]
    if job.client == "text":
        return plans.text_plan(vocab, keep, tokenizer, job.seed, job.rates, sizing)
    return plans.plan(vocab, job.seed, job.rates, sizing) + (plans.named_only(vocab, job.seed, sizing) if job.experiments else [])


def chosen_of(names: set[str], job: Any) -> set[str]:
    """The experiments the job asks for. Raises UsageError when its patterns name none."""
    chosen = {n for n in names if any(fnmatch(n, pattern) for pattern in job.experiments or ("*",))}
    if not chosen:
        raise UsageError(f"--experiments {','.join(job.experiments)!r} names none of: {', '.join(sorted(names))}")
    return chosen


def _flags(job: Any) -> list[str]:
    flags = ["--max-num-seqs", str(job.max_num_seqs), "--max-num-batched-tokens", str(job.max_num_batched_tokens)]
    flags += [word for name, value in engine_flags(job.quantization).items() for word in (f"--{name}", value)]
    flags += ["--tensor-parallel-size", str(job.tensor_parallel)] if job.tensor_parallel > 1 else []
    return flags + shlex.split(job.engine_args)


def iterations_log(journal: Journal) -> Path:
    """Files in which the servers of a run write down their iterations."""
    return journal.path.with_name(journal.path.name.removesuffix(".journal.jsonl") + ".iterations.log")


def measure(
    experiments: list[PlannedLoad], target: Target, vocab: int, journal: Journal, budget: Budget, name: str, *, local: bool = True
) -> dict[str, Any]:
    """Run the experiments into the journal until done or out of budget. Returns attributes. Clocks are read of a `local` server only: of
    one elsewhere, this machine's GPU says nothing.
    """
    warm = load.Prompts(vocab, 99)
    longest = {max(prompt for prompt, _ in e.load[1]) for e in experiments if e.load}
    waves = [(4, min(tokens, WARM_MOST)) for tokens in sorted({64, *longest, *(e.prompt_tokens for e in experiments)})]
    waves += [(1, tokens) for tokens in BETWEEN if tokens < max(longest, default=0)]
    for index, (streams, tokens) in enumerate(waves):
        asyncio.run(load.wave(target, warm, streams, tokens, 8, first=100 * index))
    waiting = [e for e in experiments if e.name not in journal]
    for experiment in paced(waiting, budget, name, reserve_s=2.0):
        began_s, before = time.time(), memory_mib(local)
        watched: AbstractContextManager[list[Any]] = machine.clocks() if local else nullcontext([])
        with watched as readings:
            records = asyncio.run(experiment.send(target))
        found = summary(experiment, records)
        memory = {"memory_before_mib": before, "memory_after_mib": memory_mib(local)}
        journal.add(experiment.name, **(found | {"row": found["row"] | {"began_unix_s": began_s} | memory | machine.summary(readings)}))
    return {"finished": int(all(e.name in journal for e in experiments))}


def memory_mib(local: bool) -> float | None:
    """Memory in use of the first GPU of this machine; None where there is none, or the server is elsewhere."""
    gpus = machine.query_gpus() if local else []
    return float(gpus[0]["gpu_memory_used_mib"]) if gpus else None


def summary(experiment: PlannedLoad, records: list[ServedRequest]) -> dict[str, Any]:
    """One experiment as journal content: its row, its request rows and its token times (seconds from the first send)."""
    start = min(r.sent_s for r in records)
    last = max((r.finish_s for r in records if r.finish_s is not None), default=start)
    row: dict[str, Any] = {
        "name": experiment.name,
        "kind": experiment.kind,
        "n": experiment.n,
        "rate_per_s": experiment.rate_per_s if np.isfinite(experiment.rate_per_s) else None,
        "text": experiment.text,
        "replicate": experiment.replicate,
        "prompt_tokens_asked": experiment.prompt_tokens,
        "output_tokens_asked": experiment.output_tokens,
        "shared_tokens": experiment.shared_tokens,
        "documents": experiment.documents,
        "void": windows.void_reason(records),
        "requests": len(records),
        "duration_s": last - start,
        **summarize([r.token_s[0] - r.sent_s for r in records if r.token_s], "ttft_s"),
    }
    if experiment.kind == "ladder":
        window = windows.decode_window(records)
        if isinstance(window, windows.Window):
            row |= {"window_tokens_per_s": window.tokens_per_s, "window_step_s": window.step_s, "window_s": window.close_s - window.open_s}
        else:
            row["void"] = row["void"] or window
    tokens = [[round(t - start, 6) for t in r.token_s] for r in records]
    return {"row": row, "requests": [_request(r, start) for r in records], "tokens": tokens}


def _as_they_came(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens in the order in which they reached the client: of each its request, and the wait since the one before.

    Tokens of one iteration come close together, so that this packs into three quarters of what every request's own times do.
    """
    requests, waits, sent = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], 0
    for record in records:
        ticks = [np.round(np.asarray(one) / WAIT_S).astype(np.int64) for one in record["tokens"]]
        request = np.repeat(np.arange(sent, sent + len(ticks)), [len(one) for one in ticks])
        came = np.concatenate([np.zeros(0, np.int64), *ticks])
        order = np.argsort(came, kind="stable")
        requests.append(request[order].astype(np.int32))
        waits.append(np.diff(came[order], prepend=0))
        sent += len(ticks)
    return {
        "token_request": ("token", np.concatenate(requests), {"long_name": TOKEN_REQUEST, "units": "1"}),
        "token_wait_us": ("token", np.concatenate(waits), {"long_name": TOKEN_WAIT, "units": "us"}),
    }


def _request(record: ServedRequest, start: float) -> dict[str, Any]:
    gaps = np.diff(record.token_s)
    return {
        "session": record.session,
        "turn": record.turn,
        "arrival_s": record.sent_s - start,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": len(record.token_s),
        "asked_tokens": record.requested_tokens,
        "cached_tokens": None if record.cached_tokens is None else float(record.cached_tokens),
        "first_token_s": None if record.first_token_s is None else record.first_token_s - record.sent_s,
        "finish_s": None if record.finish_s is None else record.finish_s - record.sent_s,
        "itl_median_s": float(np.median(gaps)) if len(gaps) else None,
        "itl_max_s": float(gaps.max()) if len(gaps) else None,
        "ok": record.ok,
        "error": record.error,
    }


def dataset(records: Sequence[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as a Dataset with dims `experiment`, `request` and `token`, and `iteration` where the server wrote them down.

    Tokens lie flat, in the order in which they came.
    """
    import xarray as xr

    rows = [dict(r["row"]) for r in records]
    requests = [{"experiment_index": i, **q} for i, r in enumerate(records) for q in r["requests"]]
    found = table("request", requests, REQUEST) | table("experiment", rows, EXPERIMENT)
    found |= _as_they_came(records)
    if log := attrs.pop("iterations_log", ""):
        with Path(log).open(encoding="ascii") as lines:
            found |= variables(by_experiment(lines, [float(row.get("began_unix_s", math.inf)) for row in rows]))
    void = sum(bool(row["void"]) for row in rows)
    return xr.Dataset(found, attrs={"protocol": PROTOCOL, "void_batches": void, **attrs})
