"""vLLM stepped in this process, one iteration at a time, with the device synchronised at the end of each.

Contexts are *placed*, not computed: a waiting request's count of already-cached tokens is set before it is first scheduled, so the
engine allocates real, distinct KV blocks (filled with noise once at start) and reads them as it would after a prefill. A cell of
(256 sequences, 2048 tokens) then costs milliseconds instead of a half-minute prefill. `control_ratio` in the grid suite measures
the same cell both ways.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hw.cells import HEADROOM_TOKENS, Cell
from hw.engines.composition import composition, work_of
from hw.engines.kv_noise import NOISE_TOKENS, fill_like_written, keys_and_values
from hw.engines.shapes import UTILIZATION, engine_flags, fitting_context, longest_context, routed, shape, write_model
from hw.engines.vllm_server import environment, require_vllm
from sim.errors import SimctlError

PATH = "in-process-sync"  # the way a time was taken; served times come from a pipelined loop and are lower


@dataclass
class SteppedIteration:
    """One engine step: its wall time, the part from scheduling done to tokens on the host, and what it carried."""

    step_s: float
    model_s: float
    counts: dict[str, int]


@dataclass
class VllmEngine:
    """A running in-process engine; `running` makes one."""

    llm: Any
    model: str
    seed: int
    temperature: float
    load_s: float
    kv_noise: list[float] = field(default_factory=list)  # standard deviation by layer, of keys and values
    _serial: int = 0
    _log: list[Any] = field(default_factory=list)

    @property
    def config(self) -> Any:
        return self.llm.llm_engine.vllm_config

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def max_model_len(self) -> int:
        return int(self.config.model_config.max_model_len)

    def describe(self) -> dict[str, Any]:
        """Identity, limits and the KV blocks really got, for provenance."""
        import vllm

        config = self.config
        return {
            "engine": "vllm",
            "engine_version": vllm.__version__,
            "path": PATH,
            "kv_blocks": int(config.cache_config.num_gpu_blocks),
            "kv_groups": len(self._managers),
            "block_size_tokens": int(config.cache_config.block_size),
            "max_num_seqs": int(config.scheduler_config.max_num_seqs),
            "max_num_batched_tokens": int(config.scheduler_config.max_num_batched_tokens),
            "max_model_len": self.max_model_len,
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
        tokens = min(NOISE_TOKENS, self.max_model_len - 1)
        self.greedy(self._tokens(np.random.default_rng(self.seed), tokens), 1)
        blocks = int(self.config.cache_config.num_gpu_blocks)

        def noise(worker: Any) -> list[float]:
            caches = getattr(worker.model_runner, "kv_caches", [])
            filled = [fill_like_written(part, blocks) for cache in caches for part in keys_and_values(cache, blocks)]
            for layer in worker.vllm_config.compilation_config.static_forward_context.values():
                if summarise := getattr(getattr(layer, "impl", None), "summarise", None):
                    summarise(layer.kv_cache)  # a backend that keeps summaries beside the cache
            return filled

        self.kv_noise = [sd for each in self.llm.collective_rpc(noise) for sd in each]

    def _tokens(self, rng: np.random.Generator, count: int) -> list[int]:
        tokens: list[int] = rng.integers(10, shape(self.model)["vocab_size"] - 10, count).tolist()
        return tokens

    def add(self, prompt: Sequence[int], *, cached: int = 0, output_tokens: int = 1) -> None:
        """Queue a request of token ids of which the first `cached` count as already computed."""
        from vllm import SamplingParams

        if not 0 <= cached < len(prompt):
            raise ValueError(f"cached must leave at least one token to compute: {cached} of {len(prompt)}")
        self._serial += 1
        known = set(self.scheduler.requests)
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, detokenize=False, temperature=self.temperature, seed=None)
        self.llm.llm_engine.add_request(f"r{self._serial}", {"prompt_token_ids": list(prompt)}, params)
        if cached:
            (new,) = set(self.scheduler.requests) - known
            self.scheduler.requests[new].num_computed_tokens = cached
            for manager in self._managers:  # blocks a sliding window has already left behind are never held
                gone = manager.get_num_skipped_tokens(cached) // manager.block_size
                if gone > 0:
                    manager.req_to_blocks[new].extend([manager._null_block] * gone)

    def fits(self, cell: Cell) -> bool:
        """Whether the cell's KV blocks, of every layer group, are within the pool (3 % kept free)."""
        sizes = [(c, c + HEADROOM_TOKENS) for c in cell.contexts] + [(o, o + t + 16) for o, t in cell.chunks]
        blocks = sum(
            -(-longest // m.block_size) - max(m.get_num_skipped_tokens(cached) // m.block_size, 0)
            for m in self._managers
            for cached, longest in sizes
        )
        return bool(blocks <= 0.97 * self.config.cache_config.num_gpu_blocks)

    @property
    def _managers(self) -> list[Any]:
        """vLLM's KV managers, one per group of layers that share a block table."""
        return list(self.scheduler.kv_cache_manager.coordinator.single_type_managers)

    def step(self) -> tuple[SteppedIteration | None, list[Any]]:
        """One iteration: (its record, or None if the engine scheduled nothing; the request outputs)."""
        self._log.clear()
        start = time.perf_counter()
        outputs = self.llm.llm_engine.step()
        end = time.perf_counter()
        work, scheduled_at, ready_at = self._log[0] if self._log else ((), 0.0, 0.0)
        return SteppedIteration(end - start, ready_at - scheduled_at, composition(work)) if work else None, outputs

    def drain(self) -> None:
        """Abort whatever is left and step until the engine is empty."""
        ids = [r.external_req_id if hasattr(r, "external_req_id") else i for i, r in self.scheduler.requests.items()]
        self.llm.llm_engine.abort_request(ids)
        if internal := list(self.scheduler.requests):
            self.llm.llm_engine.abort_request(internal, internal=True)
        for _ in range(1000):
            if not self.llm.llm_engine.has_unfinished_requests():
                return
            self.llm.llm_engine.step()
        raise SimctlError("the engine did not empty after 1000 iterations")

    def place(self, cell: Cell, rng: np.random.Generator, output_tokens: int) -> None:
        """Queue the cell's decoding sequences with their contexts in place: each next iteration decodes one token of each."""
        for context in cell.contexts:
            self.add(self._tokens(rng, context + 1), cached=context, output_tokens=output_tokens)

    def add_chunks(self, cell: Cell, rng: np.random.Generator) -> None:
        """Queue the cell's prefill chunks, each a request that ends with its first token."""
        for offset, tokens in cell.chunks:
            self.add(self._tokens(rng, offset + tokens), cached=offset, output_tokens=1)

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy continuation, for the before/after gate."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0)
        done = self.llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
        return list(done[0].outputs[0].token_ids)

    def watch(self) -> None:
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


def _context(config: dict[str, Any], job: Any) -> int:
    """Tokens of context to start with: on a GPU those that its memory holds beside 16-bit weights."""
    if job.device != "cuda" or job.quantization:
        return longest_context(config)
    import torch

    memory_bytes = float(torch.cuda.get_device_properties(0).total_memory)
    return fitting_context(config, memory_bytes, job.tensor_parallel, job.max_num_seqs, job.max_num_batched_tokens)


def parsed(words: str) -> dict[str, Any]:
    """Further words of the engine's command line as its settings by name. The engine refuses words it does not know."""
    if not words:
        return {}
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    plain, given = vars(parser.parse_args([])), vars(parser.parse_args(shlex.split(words)))
    return {name: value for name, value in given.items() if value != plain[name]}


@contextmanager
def running(job: Any, attrs: dict[str, Any]) -> Iterator[VllmEngine]:
    """vLLM on a config-only model for a job; what the engine says of itself is added to `attrs`. It is closed at the end.

    On "cpu" one pinned thread, eager. With `tensor_parallel` > 1 the scheduler stays in this process and a worker process drives each
    GPU; a step still ends with the tokens on the host. Raises UsageError when vLLM is absent, naming the extra.
    """
    require_vllm(job.device)
    os.environ.update(environment(job.device, log_level="WARNING"), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    config = shape(job.model)
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "model": str(write_model(job.model, Path(folder), quantization=job.quantization)),
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": config["torch_dtype"],
            "max_model_len": _context(config, job),
            "max_num_seqs": job.max_num_seqs,
            "max_num_batched_tokens": job.max_num_batched_tokens,
            "enable_prefix_caching": False,
            "async_scheduling": False,
            "seed": job.seed,
            "disable_log_stats": True,
        }
        settings |= {"gpu_memory_utilization": UTILIZATION} if job.device == "cuda" else {"enforce_eager": True}
        settings |= engine_flags(job.quantization)
        if job.tensor_parallel > 1:
            # a process for each GPU, started afresh: the floors have used the device in this one
            os.environ.update(VLLM_WORKER_MULTIPROC_METHOD="spawn", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
            settings |= {"tensor_parallel_size": job.tensor_parallel, "distributed_executor_backend": "mp"}
        begin = time.perf_counter()
        from vllm import LLM

        settings |= parsed(job.engine_args)
        llm = LLM(**settings)
        try:
            # A greedy argmax over random weights can send every sequence to the same experts; sampling keeps them apart.
            engine = VllmEngine(llm, job.model, job.seed, 1.0 if routed(config) else 0.0, time.perf_counter() - begin)
            engine.watch()
            engine.fill_kv()
            attrs |= engine.describe()
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s", file=sys.stderr, flush=True)
            yield engine
        finally:
            if shutdown := getattr(llm.llm_engine.engine_core, "shutdown", None):
                shutdown()
