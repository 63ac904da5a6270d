"""Checks of block-sparse decode inside a running vLLM, on a small model with random weights: needs vLLM, a Hopper GPU and no weights.

    python -m studies.kernel_checks.vllm_sparse OUT.json --schedules 1000

schedules   random arrivals over shared documents in a small KV pool (prefix hits, preemptions, reuse of pages): after each step the
            selections of two layers are compared with the float64 top k of the keys that the cache holds at that moment
whole       with k over all blocks: relative errors of our attention and of the engine's against float64, tokens beside those of dense
same cache  after the same prompts, every page of every layer of the block-sparse server equals the dense one's, bit by bit
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

MODEL, LAYERS = "tiny-25m", 8
NOTED = 50
MAX_LEN, POOL = 3072, 72  # tokens; pages of 128: three of the longest requests


@contextmanager
def engine(folder: Path, backend: str, settings: dict[str, Any], **more: Any) -> Iterator[Any]:
    """An eager in-process vLLM on the small model."""
    import torch
    from vllm import LLM
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from hw.engines.shapes import write_model

    config = write_model(MODEL, folder) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"head_dim": 128}))
    given = {
        "model": str(config.parent), "skip_tokenizer_init": True, "load_format": "dummy", "dtype": "bfloat16", "seed": 0,
        "enforce_eager": True, "max_model_len": MAX_LEN, "max_num_seqs": 8, "max_num_batched_tokens": 512, "block_size": 128,
        "num_gpu_blocks_override": POOL, "gpu_memory_utilization": 0.3, "disable_log_stats": True, "async_scheduling": False,
        "attention_backend": AttentionBackendEnum[backend], "additional_config": {"sparse_decode": settings},
    } | more  # fmt: skip
    llm = LLM(**given)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        torch.cuda.empty_cache()


class Watch:
    """Compares selections and outputs of `SparseLayer.attend` with float64, of the layers whose turn it is."""

    def __init__(self, outputs: bool = False) -> None:
        from kernels.sparse_decode import SparseLayer

        self.calls = self.compared = self.differ = self.beyond_rounding = 0
        self.outputs, self.errors = outputs, [0.0]
        self.original = original = SparseLayer.attend

        def attend(layer: Any, q: Any, table: Any, lens: Any, out: Any, scale: float) -> Any:
            chosen = original(layer, q, table, lens, out, scale)
            turn = self.calls % LAYERS
            if turn in ((self.calls // LAYERS) % LAYERS, (self.calls // LAYERS + 4) % LAYERS) and int(lens.max()) > 0:
                self.compare(layer, q, table, lens, chosen)
                if self.outputs:
                    self.compare_outputs(layer, q, table, lens, chosen, out, scale)
            self.calls += 1
            return chosen

        setattr(SparseLayer, "attend", attend)  # noqa: B010

    def close(self) -> None:
        from kernels.sparse_decode import SparseLayer

        setattr(SparseLayer, "attend", self.original)  # noqa: B010

    def compare(self, layer: Any, q: Any, table: Any, lens: Any, chosen: Any) -> None:
        import torch

        from kernels.selector import SCORE_BOUND

        s, k = layer.settings, chosen.shape[2]
        blocks = -(-lens // 128)
        most = max(int(blocks.max()), k)
        keys = layer.k_cache[table[:, :most].long()].double()  # [B, blocks, heads, 128, D]
        low, high = keys.amin(3).transpose(1, 2), keys.amax(3).transpose(1, 2)  # [B, heads, blocks, D]
        grouped = q.double().view(q.shape[0], low.shape[1], -1, 1, q.shape[2])
        score = torch.maximum(grouped * low[:, :, None], grouped * high[:, :, None]).sum(-1).amax(2)
        at = torch.arange(low.shape[2], device=q.device)
        open_to = (at >= s.sink) & (at < (blocks - s.window)[:, None])
        score = torch.where(open_to[:, None], score, -torch.inf)
        best = score.sort(dim=-1, descending=True, stable=True)
        want = torch.where(best.values[..., :k] == -torch.inf, -1, best.indices[..., :k])
        rows = (lens > 0)[:, None, None]
        off = ((want != chosen) & rows).any(-1)
        self.compared += int(rows.sum()) * low.shape[1]
        if not bool(off.any()):
            return
        self.differ += int(off.sum())
        # A difference is rounding where the scores of what was chosen are, one by one, those of what should be within the bound.
        got = score.gather(2, chosen.long().clamp(min=0)).masked_fill(chosen < 0, 0)
        should = best.values[..., :k].masked_fill(want < 0, 0)
        bound = SCORE_BOUND[torch.bfloat16] * score.masked_fill(score == -torch.inf, 0).abs().amax(-1, keepdim=True)
        self.beyond_rounding += int((((got - should).abs() > bound).any(-1) & off).sum())

    def compare_outputs(self, layer: Any, q: Any, table: Any, lens: Any, chosen: Any, out: Any, scale: float) -> None:
        from kernels import reference

        s = layer.settings
        for b in np.flatnonzero(lens.cpu().numpy()).tolist():
            rows = slice(b, b + 1)
            want = reference.gather_decode(
                q[rows], layer.k_cache, layer.v_cache, lens[rows], chosen[rows], table[rows], scale, 128, s.sink, s.window
            )
            self.errors.append(reference.relative_error(out[rows], want))


def caches(llm: Any) -> list[Any]:
    return [x.clone() for x in llm.collective_rpc(lambda worker: list(worker.model_runner.kv_caches))[0]]


def add(llm: Any, name: str, prompt: list[int], tokens: int) -> None:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0)
    llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)


def run_schedules(llm: Any, count: int, deadline: float, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Random schedules one into the next: each 1 to 4 requests on one of six documents, arriving while others run. `note` gets the counts
    of selections every NOTED schedules: a run that is ended early has them.
    """
    import torch

    rng, watch = np.random.default_rng(1), Watch()
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    documents = [rng.integers(10, 8000, MAX_LEN).tolist() for _ in range(6)]
    steps, done, serial, before = 0, 0, 0, torch.cuda.memory_allocated()
    began = time.perf_counter()
    for done in range(1, count + 1):
        for _ in range(rng.integers(1, 5)):
            prompt = int(rng.integers(300, 2700))
            shared = int(rng.integers(0, prompt))
            text = documents[rng.integers(6)][:shared] + rng.integers(10, 8000, prompt - shared).tolist()
            add(llm, f"r{serial}", text, int(rng.choice([2, 6, 20, 140], p=[0.3, 0.4, 0.25, 0.05])))
            serial += 1
        while len(scheduler.running) + len(scheduler.waiting) > rng.integers(1, 9):
            llm.llm_engine.step()
            steps += 1
        if done % NOTED == 0:
            note({"schedules": done, "compared": watch.compared, "differ": watch.differ, "beyond_rounding": watch.beyond_rounding})
        if done == 20:
            before = torch.cuda.memory_allocated()
        if time.perf_counter() > deadline:
            break
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
        steps += 1
    manager = scheduler.kv_cache_manager
    stats = getattr(manager, "prefix_cache_stats", None)
    hits = int(getattr(stats, "hits", 0) or 0)
    preempted = int(getattr(stats, "preempted_requests", 0) or 0)
    return {
        "schedules": done, "requests": serial, "steps": steps, "seconds": time.perf_counter() - began, "prefix_hit_tokens": hits,
        "preempted": preempted, "compared": watch.compared, "differ": watch.differ, "beyond_rounding": watch.beyond_rounding,
        "free_pages_after": int(manager.block_pool.get_num_free_blocks()), "pages": POOL,
        "allocated_growth_bytes": int(torch.cuda.memory_allocated() - before),
    }  # fmt: skip


def same_prompts(llm: Any, tokens: int) -> tuple[list[Any], list[list[int]]]:
    """(the caches after four prompts, each read alone; greedy tokens of the four, each alone)."""
    from vllm import SamplingParams

    rng = np.random.default_rng(3)
    prompts = [{"prompt_token_ids": rng.integers(10, 8000, n).tolist()} for n in (700, 1500, 2000, 2900)]
    once = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False, temperature=0.0)
    for prompt in prompts:
        llm.generate([prompt], once, use_tqdm=False)
    held = caches(llm)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0)
    return held, [list(llm.generate([p], params, use_tqdm=False)[0].outputs[0].token_ids) for p in prompts]


def agreement(a: list[list[int]], b: list[list[int]]) -> float:
    """Share of greedy tokens that agree up to the first that does not."""
    same = [next((i for i, (x, y) in enumerate(zip(p, q, strict=True)) if x != y), len(p)) for p, q in zip(a, b, strict=True)]
    return sum(same) / sum(len(p) for p in a)


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--schedules", default=1000, show_default=True)
@click.option("--seconds", default=150.0, show_default=True, help="Of schedules, at most.")
def main(out: Path, schedules: int, seconds: float) -> None:
    """Run the checks and write OUT."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    import tempfile

    import torch

    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0)}

    def keep(**part: Any) -> None:
        found.update(part)
        print(json.dumps(part), flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n")

    few, every = {"k": 3, "dense_below": 512, "summaries": "minmax"}, {"k": 24, "dense_below": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with engine(folder, "FLASH_ATTN", {}, enable_prefix_caching=False) as llm:
            dense, tokens = same_prompts(llm, 32)
        with engine(folder, "CUSTOM", every, enable_prefix_caching=False) as llm:
            watch = Watch(outputs=True)
            whole, whole_tokens = same_prompts(llm, 32)
            watch.close()
            keep(
                whole={"attention_error": max(watch.errors), "compared": watch.compared, "top1_agreement": agreement(tokens, whole_tokens)}
            )
            keep(same_cache=all(torch.equal(a, b) for a, b in zip(dense, whole, strict=True)), cache_bytes=sum(x.nbytes for x in dense))
        with engine(folder, "CUSTOM", few) as llm:
            keep(schedules=run_schedules(llm, schedules, time.perf_counter() + seconds, lambda part: keep(schedules=part)))


if __name__ == "__main__":
    main()
