"""vLLM stepped in this process, one iteration at a time, with the device synchronised at the end of each.

Contexts are *placed*, not computed: a waiting request's count of already-cached tokens is set before it is first scheduled, so the
engine allocates real, distinct KV blocks (filled with noise once at start) and reads them as it would after a prefill. A cell of
(256 sequences, 2048 tokens) then costs milliseconds instead of a half-minute prefill. `control_ratio` in the grid suite measures
the same cell both ways.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hw.cells import HEADROOM_TOKENS, Cell
from hw.composition import composition, work_of
from hw.engines.kv_noise import NOISE_TOKENS, fill_like_written, keys_and_values
from hw.engines.shapes import shape, write_model
from sim.errors import SimctlError, UsageError

PATH = "in-process-sync"  # the way a time was taken; served times come from a pipelined loop and are lower


@dataclass
class Iteration:
    """One engine step: its wall time, the part from scheduling done to tokens on the host, and what it carried."""

    step_s: float
    model_s: float
    counts: dict[str, int]


@dataclass
class VllmEngine:
    """A running in-process engine. Build with `start`; always `close`."""

    llm: Any
    model: str
    seed: int
    temperature: float
    settings: dict[str, Any]
    load_s: float
    kv_noise: list[float] = field(default_factory=list)  # standard deviation by layer, of keys and values
    _serial: int = 0
    _log: list[Any] = field(default_factory=list)

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def kv_tokens(self) -> int:
        """KV capacity in tokens, as the engine allocated it."""
        cache = self.llm.llm_engine.vllm_config.cache_config
        return int(cache.num_gpu_blocks * cache.block_size)

    def describe(self) -> dict[str, Any]:
        """Identity, limits and the KV blocks really got, for provenance."""
        import vllm

        config = self.llm.llm_engine.vllm_config
        return {
            "engine": "vllm",
            "engine_version": vllm.__version__,
            "path": PATH,
            "tensor_parallel_size": int(config.parallel_config.tensor_parallel_size),
            "kv_blocks": int(config.cache_config.num_gpu_blocks),
            "kv_groups": len(self._managers),
            "block_size_tokens": int(config.cache_config.block_size),
            "max_num_seqs": int(config.scheduler_config.max_num_seqs),
            "max_num_batched_tokens": int(config.scheduler_config.max_num_batched_tokens),
            "max_model_len": int(config.model_config.max_model_len),
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "cudagraph_max_size": int(max(config.compilation_config.cudagraph_capture_sizes or [0])),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "attention_backend": os.environ.get("VLLM_ATTENTION_BACKEND", "engine default"),
            "temperature": self.temperature,
            "weights": "random",
            "kv_noise_sd_median": float(np.median(self.kv_noise)) if self.kv_noise else float("nan"),
            "engine_start_s": round(self.load_s, 2),
        }

    def fill_kv(self) -> None:
        """Fill the KV pool with noise of the size that this model writes: zeros draw less power and can run faster than real keys do, and
        values far larger than its own drown what tells tokens apart, so that all of a chunk route to the same experts.
        """
        tokens = min(NOISE_TOKENS, int(self.settings["max_model_len"]) - 1)
        self.greedy(np.random.default_rng(self.seed).integers(10, shape(self.model)["vocab_size"] - 10, tokens).tolist(), 1)
        blocks = int(self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks)

        def noise(worker: Any) -> list[float]:
            caches = getattr(worker.model_runner, "kv_caches", [])
            return [fill_like_written(part, blocks) for cache in caches for part in keys_and_values(cache, blocks)]

        self.kv_noise = [sd for each in self.llm.collective_rpc(noise) for sd in each]

    def add(self, prompt: Sequence[int], *, cached: int = 0, output_tokens: int = 1) -> str:
        """Queue a request of token ids of which the first `cached` count as already computed. Returns its external id."""
        from vllm import SamplingParams

        if not 0 <= cached < len(prompt):
            raise ValueError(f"cached must leave at least one token to compute: {cached} of {len(prompt)}")
        self._serial += 1
        name = f"r{self._serial}"
        known = set(self.scheduler.requests)
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, detokenize=False, temperature=self.temperature, seed=None)
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        if cached:
            (new,) = set(self.scheduler.requests) - known
            self.scheduler.requests[new].num_computed_tokens = cached
            for manager in self._managers:  # blocks a sliding window has already left behind are never held
                gone = manager.get_num_skipped_tokens(cached) // manager.block_size
                if gone > 0:
                    manager.req_to_blocks[new].extend([manager._null_block] * gone)
        return name

    def fits(self, cell: Cell) -> bool:
        """Whether the cell's KV blocks, of every layer group, are within the pool (3 % kept free)."""
        return self._blocks(cell) <= 0.97 * self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks

    def _blocks(self, cell: Cell) -> int:
        sizes = [(c, c + HEADROOM_TOKENS) for c in cell.contexts] + [(o, o + t + 16) for o, t in cell.chunks]
        return sum(
            -(-longest // m.block_size) - max(m.get_num_skipped_tokens(cached) // m.block_size, 0)
            for m in self._managers
            for cached, longest in sizes
        )

    @property
    def _managers(self) -> list[Any]:
        """vLLM's KV managers, one per group of layers that share a block table."""
        return list(self.scheduler.kv_cache_manager.coordinator.single_type_managers)

    def step(self) -> tuple[Iteration | None, list[Any]]:
        """One iteration: (its record, or None if the engine scheduled nothing; the request outputs)."""
        self._log.clear()
        start = time.perf_counter()
        outputs = self.llm.llm_engine.step()
        end = time.perf_counter()
        if not self._log:
            return None, outputs
        work, scheduled_at, ready_at = self._log[0]
        if not work:
            return None, outputs
        return Iteration(end - start, ready_at - scheduled_at, composition(work)), outputs

    def drain(self) -> None:
        """Abort whatever is left and step until the engine is empty."""
        ids = [r.external_req_id if hasattr(r, "external_req_id") else i for i, r in self.scheduler.requests.items()]
        self.llm.llm_engine.abort_request(ids)
        internal = list(self.scheduler.requests)
        if internal:
            self.llm.llm_engine.abort_request(internal, internal=True)
        for _ in range(1000):
            if not self.llm.llm_engine.has_unfinished_requests():
                return
            self.llm.llm_engine.step()
        raise SimctlError("the engine did not empty after 1000 iterations")

    def place(self, cell: Cell, rng: np.random.Generator, output_tokens: int) -> None:
        """Queue the cell's decoding sequences with their contexts in place: each next iteration decodes one token of each."""
        vocab = shape(self.model)["vocab_size"]
        for context in cell.contexts:
            tokens = rng.integers(10, vocab - 10, context + 1).tolist()
            self.add(tokens, cached=context, output_tokens=output_tokens)

    def add_chunks(self, cell: Cell, rng: np.random.Generator) -> None:
        """Queue the cell's prefill chunks, each a request that ends with its first token."""
        vocab = shape(self.model)["vocab_size"]
        for offset, tokens in cell.chunks:
            self.add(rng.integers(10, vocab - 10, offset + tokens).tolist(), cached=offset, output_tokens=1)

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy continuation, for the before/after gate."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0)
        done = self.llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
        return list(done[0].outputs[0].token_ids)

    def close(self) -> None:
        shutdown = getattr(self.llm.llm_engine.engine_core, "shutdown", None)
        if shutdown:
            shutdown()

    def _watch(self) -> None:
        """Wrap the scheduler so that each step leaves its composition and two times in `_log`."""
        scheduler, log = self.scheduler, self._log
        schedule, update = scheduler.schedule, scheduler.update_from_output

        def watched_schedule(*args: Any, **kwargs: Any) -> Any:
            decision = schedule(*args, **kwargs)
            log.append([work_of(decision), time.perf_counter(), 0.0])
            return decision

        def watched_update(*args: Any, **kwargs: Any) -> Any:
            log[-1][2] = time.perf_counter()
            return update(*args, **kwargs)

        scheduler.schedule, scheduler.update_from_output = watched_schedule, watched_update


def import_engine(device: str) -> None:
    """Set the engine's environment for `device` ("cuda" or "cpu") and import it. Raises UsageError when it is absent, naming the extra."""
    if importlib.util.find_spec("vllm") is None:
        extra_name = "engine" if device == "cuda" else "engine-cpu"
        raise UsageError(f"vLLM is not installed: pip install 'llm-simctl[{extra_name}]', or unpack a bundle (docs/air-gapped.md)")
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM  # noqa: F401


def start(
    model: str,
    folder: Path,
    *,
    device: str,
    seed: int = 0,
    quantization: str | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    gpu_memory_utilization: float = 0.9,
    tensor_parallel: int = 1,
    extra: dict[str, Any] | None = None,
) -> VllmEngine:
    """Start vLLM on a config-only model written under `folder`.

    `device` is "cuda" or "cpu" (one pinned thread, eager). With `tensor_parallel` > 1 the scheduler stays in this process and a
    worker process drives each GPU; a step still ends with the tokens on the host. Raises UsageError when vLLM is absent, naming the extra.
    """
    import_engine(device)
    config = shape(model)
    path = write_model(model, folder)
    settings: dict[str, Any] = {
        "model": str(path),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": config["torch_dtype"],
        "max_model_len": max_model_len or min(config["max_position_embeddings"], 131072),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "seed": seed,
        "disable_log_stats": True,
    }
    if device == "cuda":
        settings["gpu_memory_utilization"] = gpu_memory_utilization
    else:
        settings["enforce_eager"] = True
    if quantization:
        settings["quantization"] = quantization
    if tensor_parallel > 1:
        # a process for each GPU, started afresh: the floors have used the device in this one
        os.environ.update(VLLM_WORKER_MULTIPROC_METHOD="spawn", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
        # the host may share its switches with others: plain peer-to-peer and ring all-reduce only, no multicast
        os.environ.setdefault("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
        settings |= {"tensor_parallel_size": tensor_parallel, "distributed_executor_backend": "mp"}
    settings |= extra or {}
    begin = time.perf_counter()
    from vllm import LLM

    llm = LLM(**settings)
    # A greedy argmax over random weights can send every sequence to the same experts; sampling keeps them apart.
    temperature = 1.0 if "num_experts" in config else 0.0
    engine = VllmEngine(llm, model, seed, temperature, settings, time.perf_counter() - begin)
    engine._watch()
    engine.fill_kv()
    return engine
