"""Deployments: a model on GPUs under an engine with limits, and the KV blocks and batch limits that this leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from sim.cluster.admission import NO_LIMITS, AdmissionLimits, batch_cap
from sim.cost.batch import DENSE, BatchShape, decode_batch
from sim.cost.coefficients import check_tensor_parallel
from sim.cost.gemm import chip_of
from sim.cost.pipeline import share_of
from sim.cost.rates import Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import Work, iteration_work
from sim.deployment.kv_layout import KvLayout, sequence_state_bytes, vllm_layout
from sim.deployment.memory import Memory, block_bytes, device_memory, loaded_weight_bytes, peerless_bytes, sequence_bytes, sglang_kept_bytes
from sim.deployment.pool import (
    COUNTS_ALL_IN_FLIGHT,
    LOGGED_BY_CONCURRENCY,
    PADS_PAGES,
    STARTS_NEED_STATES,
    KvPool,
    sglang_layout,
    sglang_states,
)
from sim.engine.config import EngineConfig, overlaps
from sim.engine.host_tier import LINK_SHARE
from sim.engine.registry import check_has, engine_of
from sim.engine.version_defaults import default_share, logit_copies, numbers
from sim.engine.versions import NEWEST
from sim.errors import SimctlError, UsageError
from sim.rates.links import linked
from sim.shown import Figures, Shown
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.draft_heads import HEADS, draft_head
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.linear_kernels import AUTO, linear_kernel
from sim.specs.lora import Lora
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from sim.specs.parallel import NO_PARALLEL, Parallel, check_parallel, placed
from sim.specs.precision import ACTIVATION_BYTES, Precision, check_engine, check_runs, served_precision
from sim.specs.stored import storage_format
from sim.specs.topology import Topology, default_topology
from sim.study.engine_names import ENGINE_NAMES, own_names
from sim.units import format_bytes

if TYPE_CHECKING:
    from sim.workload.trace import Trace

BIG_GPU_BYTES = 70 * 2**30
MOST_SEQS = 4096
STATE_SHARE = 0.5  # of what is free, for slots of state in an engine without a pool of them
MOST_GIB = 1e6
SHOWN = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization")  # limits that a line says where they are set


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine and what the user sets of it, None where its default applies. Names are vLLM's; `options` are the engine's own settings.

    `attention` says what a decode reads and where KV lives, `host_kv_bytes` how much host RAM a replica has for it there. `draft` is the
    model that proposes drafts: its weights and its KV share the GPU. `kv_offloading_size` is GiB of host RAM in which a replica keeps the
    prefix blocks that its GPUs evict. `max_model_len` auto is the longest that KV holds; None is the model's, and an engine that
    cannot hold one request of it does not start. With `enforce_eager` no CUDA graph is captured.
    `linear_backend` is the kernel of quantised linear layers (sim.specs.linear_kernels).
    `batch_knee` caps the batch where per-request decode efficiency falls to it (`cap_at_knee`): that needs a workload.
    """

    engine: str = "vllm"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int = 16
    max_model_len: int | Literal["auto"] | None = "auto"
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    attention: AttentionPolicy = DENSE
    host_kv_bytes: float = 0.0
    kv_offloading_size: float | None = None
    draft: ModelSpec | None = None
    enforce_eager: bool = False
    lora: Lora | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prefill_schedule_interval: int = 1
    engine_version: str = NEWEST
    batch_knee: float | None = None
    linear_backend: str = AUTO

    def __post_init__(self) -> None:
        if self.batch_knee is not None and self.max_num_seqs is not None:
            raise UsageError("a batch cap is a number or at a knee, not both")
        if self.host_kv_bytes and self.attention.placement != "host":
            raise UsageError(f"host_kv_bytes needs attention with KV in host RAM, not {self.attention.label}")
        check_has(self.engine, self)
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if not 0.0 < self.memory_share <= 1.0:
            raise UsageError(f"gpu memory utilization must lie in (0, 1], got {self.memory_share:g}")

    @property
    def memory_share(self) -> float:
        """Share of device memory the engine takes: as given, or its default."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        share = engine_of(self.engine).memory_share
        return default_share(self.engine_version, share) if self.engine == "vllm" else share


@dataclass(frozen=True, slots=True, repr=False)
class Deployment(Shown):
    """A deployment: `replicas` engines behind a router, each on `gpus` GPUs: `tp` of them in each stage and rank of `parallel`.

    `topology` None is what the GPU's catalogue entry says.
    """

    model: ModelSpec
    gpu: GpuSpec
    precision: Precision = field(default_factory=Precision)
    tp: int = 1
    limits: Limits = field(default_factory=Limits)
    replicas: int = 1
    router: str = "round-robin"
    admission: AdmissionLimits = NO_LIMITS
    router_options: Mapping[str, Any] = field(default_factory=dict)
    parallel: Parallel = NO_PARALLEL
    topology: Topology | None = None

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        limits, several = self.limits, f"{self.replicas} replicas of " if self.replicas > 1 else ""
        set_ = [(name, str(value)) for name in SHOWN if (value := getattr(limits, name)) not in (None, "auto")]
        figures = [("weights", self.precision.weights), ("KV", self.precision.kv), ("engine", limits.engine), *set_]
        return f"{self.model.name} on {several}{self.placed}", figures + [("router", self.router)] * (self.replicas > 1)

    def __post_init__(self) -> None:
        check_tensor_parallel(self.model, self.tp)
        if self.replicas < 0:
            raise UsageError(f"replicas cannot be {self.replicas}")
        check_runs(self.precision, self.gpu)
        storage, of = storage_format(self.model, self.precision), self.limits
        kernel = linear_kernel(storage, self.gpu, of.engine, of.engine_version if of.engine == "vllm" else "", of.linear_backend)
        object.__setattr__(self, "precision", replace(self.precision, kernel=kernel))
        object.__setattr__(self, "limits", replace(self.limits, draft=_draft_of(self.model, self.limits)))
        check_engine(self.precision, self.limits.engine, self.gpu)
        check_parallel(self.model, self.tp, self.parallel)
        if self.parallel.parts > 1 and engine_of(self.limits.engine).slots_own_context:
            raise UsageError(f"{self.limits.engine} has no pipeline or data parallelism here")
        links = self.links
        if links.source and links.network is None and links.nodes(self.gpus) > 1 and self.gpus > links.nvlink_domain:
            raise UsageError(f"{links.source}: field 'network' is missing: {self.gpus} GPUs take {links.nodes(self.gpus)} nodes")
        object.__setattr__(self, "parallel", linked(self.parallel, self.tp, self.gpu, self.links))

    @classmethod
    def of(
        cls,
        model: str | ModelSpec,
        gpu: str | GpuSpec,
        *,
        dtype: str | None = None,
        kv_dtype: str | None = None,
        tp: int = 1,
        replicas: int = 1,
        router: str = "round-robin",
        admission: AdmissionLimits = NO_LIMITS,
        router_options: Mapping[str, Any] | None = None,
        parallel: Parallel = NO_PARALLEL,
        topology: Topology | None = None,
        **limits: Any,
    ) -> Deployment:
        """A deployment by catalogue names (or config.json, or GPU file); `limits` are fields of Limits. Engines' own names of settings
        (sim.study.engine_names) do, too. UsageError for an unknown one.

        Without a dtype it is the checkpoint's, else bf16, or fp16 on a GPU that has no bf16.
        """
        if set(limits) & ENGINE_NAMES:
            named = {"dtype": dtype, "kv_dtype": kv_dtype, "parallel": parallel} | ({} if tp == 1 else {"tp": tp})
            given = own_names({name: value for name, value in named.items() if value not in (None, NO_PARALLEL)} | limits)
            return cls.of(
                model, gpu, replicas=replicas, router=router, admission=admission, router_options=router_options, topology=topology, **given
            )
        if unknown := set(limits) - set(Limits.__dataclass_fields__):
            raise UsageError(f"no such limit: {', '.join(sorted(unknown))}; there are {', '.join(Limits.__dataclass_fields__)}")
        card = get_gpu(gpu) if isinstance(gpu, str) else gpu
        spec = get_model(model) if isinstance(model, str) else model
        return cls(
            spec,
            card,
            served_precision(spec, card, dtype, kv_dtype),
            tp,
            Limits(**limits),
            replicas,
            router,
            admission,
            router_options or {},
            parallel,
            topology,
        )

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tp * self.parallel.parts

    @property
    def placed(self) -> str:
        """A replica's GPUs in words."""
        return placed(self.gpu.name, self.tp, self.parallel)

    @property
    def longest(self) -> int:
        """Most tokens of a request, as far as it is said: max_model_len, else the model's context."""
        return self.limits.max_model_len if isinstance(self.limits.max_model_len, int) else self.model.max_context

    @property
    def started(self) -> int | None:
        """The length at which this version of vLLM starts where none is said, if that is less than the model declares."""
        tokens, first = self.model.started or (self.model.max_context, (0, 0))
        applies = self.limits.engine == "vllm" and numbers(self.limits.engine_version) >= first and tokens < self.model.max_context
        return tokens if applies else None

    @property
    def links(self) -> Topology:
        """The topology given, or the GPU's."""
        return self.topology or default_topology(self.gpu)

    def work(self, shape: BatchShape, policy: AttentionPolicy | None = None) -> Work:
        """The work of one iteration of a replica, of sequences that are alike, per GPU; under another policy than its own where one
        is given.
        """
        part, chip = share_of(shape, self.parallel), chip_of(self.gpu, self.precision, self.limits.engine == "llamacpp")
        return iteration_work(
            self.model, part, self.precision, policy or self.limits.attention, self.tp, chip, self.parallel, self.limits.lora
        )

    def batch_limits(self) -> tuple[int, int]:
        """(max_num_seqs, max_num_batched_tokens) in force.

        Running requests hold recurrent state, where the model has one: unasked, no more run than have room for it.
        """
        limits = self.limits
        seqs, budget = default_batch_limits(self.gpu, limits.engine)
        seqs = limits.max_num_seqs or min(seqs, limits.max_num_batched_tokens or seqs)
        whole = 0 if limits.enable_chunked_prefill else self.longest
        budget = limits.max_num_batched_tokens or max(budget, seqs, whole)  # a prompt that is not cut must fit
        if self.state_bytes and limits.num_gpu_blocks is None and (limits.max_num_seqs is None or limits.engine == "sglang"):
            seqs = max(1, min(seqs, self._most_states(seqs, budget)))
        return seqs, budget

    def _most_states(self, seqs: int, budget: int) -> int:
        """Requests whose states have room when the server is started for `seqs`."""
        memory = self._memory(seqs, budget, 0.5)
        if self.limits.engine == "sglang":
            return sglang_states(max(memory.free, 0.0), self.state_bytes, self.limits.enable_prefix_caching is not False)[1]
        if self.pages:
            return self.pool_in(memory.free, budget).most_running()
        return int(STATE_SHARE * max(memory.free, 0.0) / self.state_bytes)

    @property
    def state_bytes(self) -> float:
        """Recurrent state of one running request, per GPU."""
        return self.parallel.stage_share(self.model) * sequence_state_bytes(self.model, self.tp)

    @property
    def pages(self) -> bool:
        """Whether all that requests keep comes from one pool of blocks: vLLM, with all of it in HBM."""
        limits = self.limits
        return engine_of(limits.engine).pages and limits.attention == DENSE and limits.host_kv_bytes == 0

    @property
    def caches_prefixes(self) -> bool:
        """Whether prefixes are kept. One's KV is of no use without the recurrent state at its end, which engines do not keep by default."""
        asked = self.limits.enable_prefix_caching
        return not self.model.state_layers if asked is None else asked

    @property
    def layout(self) -> KvLayout:
        """Groups of layers that share a block table, and the bytes of a block on one GPU."""
        limits, share = self.limits, self.parallel.stage_share(self.model)
        if limits.engine == "sglang":
            found = sglang_layout(self.model, self.precision, self.tp, limits.block_size, limits.draft)
        else:
            found = vllm_layout(
                self.model,
                self.precision,
                self.tp,
                limits.block_size,
                limits.draft,
                drafts if isinstance(drafts := limits.options.get("draft_tokens"), int) else 0,  # another type is refused by the engine
                self.caches_prefixes,
                limits.kv_offloading_size is not None,  # a connector takes one group
                limits.engine == "vllm" and numbers(limits.engine_version) < PADS_PAGES,
            )
        return replace(found, block_bytes=share * found.block_bytes)

    def pool_in(self, free_bytes: float, budget: int) -> KvPool:
        """The pool of blocks in so many bytes of each GPU."""
        limits = self.limits
        ahead = self.parallel.pp
        if limits.engine != "vllm" or numbers(limits.engine_version) >= COUNTS_ALL_IN_FLIGHT:
            ahead += overlaps(limits.engine, limits.options, limits.engine_version)
        return KvPool(self.layout, max(0.0, free_bytes), ahead * budget)

    def pool(self, share: float = 0.5) -> KvPool:
        """The pool of blocks that memory leaves; quantile `share` of the engine's own overhead."""
        return self.pool_in(self.memory(share).free, self.batch_limits()[1])

    def request_bytes(self, context: int, policy: AttentionPolicy) -> tuple[float, float]:
        """(bytes in HBM, bytes in host RAM) that a request of `context` tokens keeps under a policy, per GPU: in a pool of blocks, what the
        engine counts for it.
        """
        if self.pages and policy == DENSE:
            return self.pool().request_bytes(context), 0.0
        share = self.parallel.stage_share(self.model)
        hbm, host = sequence_bytes(self.model, context, self.precision, policy, self.tp)
        return share * hbm, share * host

    def logged_tokens(self, longest: int) -> int:
        """Tokens of a rank's pool as the engine's start says them, served with a max_model_len of `longest`."""
        pool, limits = self.pool(), self.limits
        shared_out = limits.engine == "vllm" and numbers(limits.engine_version) < LOGGED_BY_CONCURRENCY
        return pool.layout.logged_tokens(pool.free_bytes, longest, pool.in_flight, shared_out)

    def memory(self, share: float = 0.5) -> Memory:
        """Device memory per GPU under the limits, the draft model's weights with it; quantile `share` of the engine's own overhead."""
        return self._memory(*self.batch_limits(), share)

    def memory_for(self, seqs: int, budget: int) -> Memory:
        """Device memory per GPU of a server started for `seqs` sequences and a token budget."""
        return self._memory(seqs, budget, 0.5)

    def _memory(self, seqs: int, budget: int, share: float) -> Memory:
        limits = self.limits
        text_only = limits.engine != "vllm" or bool(limits.options.get("language_model_only"))
        model = replace(self.model, image_bytes=(0.0, 0.0)) if text_only else self.model
        found = device_memory(
            model,
            self.gpu,
            self.precision,
            tp=self.tp,
            utilization=limits.memory_share,
            token_budget=budget,
            max_num_seqs=seqs,
            share=share,
            parallel=self.parallel,
            logit_copies=logit_copies(limits.engine_version) if limits.engine == "vllm" else None,
        )
        if text_only and limits.engine == "vllm":  # without its tower
            found = replace(found, weights=found.weights - model.tower_params * ACTIVATION_BYTES / self.tp)
        if limits.engine == "sglang":
            found = replace(found, activations=limits.memory_share * sglang_kept_bytes(self.tp, self.gpu.unified_memory))
        if self.tp > 1 and self.links.way(self.tp) == "host":
            found = replace(found, activations=found.activations + peerless_bytes(share))
        if limits.lora is not None:
            adapters = limits.lora.adapters * limits.lora.params(self.model) * ACTIVATION_BYTES
            found = replace(found, weights=found.weights + adapters * self.parallel.stage_share(self.model) / self.tp)
        if given := limits.options.get("kv_cache_memory_bytes"):
            return replace(found, allowed=min(self.gpu.memory_bytes, found.weights + found.activations + float(given)))
        if limits.draft is None:
            return found
        own = loaded_weight_bytes(limits.draft, self.precision, self.tp)
        if limits.options.get("drafter") in HEADS:  # its tables are the model's
            own -= limits.draft.lm_head_params * ACTIVATION_BYTES / self.tp
        return replace(found, weights=found.weights + own)


def _draft_of(model: ModelSpec, limits: Limits) -> ModelSpec | None:
    """What proposes the drafts: as given, or the model's own head. UsageError for a draft model without drafts, or for these without it."""
    drafter = limits.options.get("drafter", "ngram") if limits.options.get("draft_tokens") else None
    if limits.draft is not None and (limits.engine != "vllm" or drafter in (None, "ngram")):
        raise UsageError("draft-model needs --engine vllm, draft_tokens=K and a drafter that is a model")
    if limits.draft is None and drafter == "draft_model":
        raise UsageError("drafter=draft_model needs --engine-option draft-model=NAME: its steps, weights and KV are that model's")
    return draft_head(model, str(drafter)) if limits.draft is None and drafter in HEADS else limits.draft


def with_adapters(d: Deployment, trace: Trace) -> Deployment:
    """The deployment with the share of its requests that name a LoRA adapter, where some do. UsageError where it serves none."""
    mine = [bool(name) for name, model in zip(trace.adapters, trace.models or repeat(""), strict=False) if model in ("", d.model.name)]
    if not any(mine):
        return d
    if d.limits.lora is None:
        raise UsageError(f"requests name adapters, and {d.model.name} is served without: --engine-option enable-lora")
    return replace(d, limits=replace(d.limits, lora=replace(d.limits.lora, share=sum(mine) / len(mine))))


def default_batch_limits(gpu: GpuSpec, engine: str = "vllm") -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) of an engine that has its own, else those that vLLM 0.32's server takes on this GPU: larger
    from 70 GiB up, A100 excepted.
    """
    if (own := engine_of(engine).batch_limits) is not None:
        return own
    if gpu.memory_bytes >= BIG_GPU_BYTES and "a100" not in gpu.name.casefold():
        return 1024, 8192
    return 256, 2048


def plan_engine(d: Deployment, held: tuple[float, int] | None = None) -> tuple[EngineConfig, Memory]:
    """The engine's configuration, KV blocks predicted from memory unless given.

    Where layers keep KV of unlike lengths, tokens do not all cost alike: blocks are those of requests that hold `held[0]` tokens in the
    mean (None: of the longest), and no fewer than the longest, of `held[1]`, needs, as far as the engine can hold it.
    Raises SimctlError when the weights leave no room for KV, UsageError for limits that contradict each other.
    """
    model, limits = d.model, d.limits
    if limits.attention.placement == "host":
        _check_host_kv(d)
    seqs, budget = d.batch_limits()
    memory = d.memory()
    blocks = limits.num_gpu_blocks
    if blocks is None:
        if not d.pages and (state := d.state_bytes):
            slots = sglang_states(max(memory.free, 0.0), state, False)[0] if limits.engine == "sglang" else seqs
            memory = replace(memory, activations=memory.activations + slots * state)
        blocks = _block_count(d, memory, held[0] if held else None)
        if blocks < 2 and limits.attention.placement == "host" and memory.free > 0:
            raise SimctlError(
                f"{model.name}: {format_bytes(limits.host_kv_bytes)} of host RAM hold no KV block of {limits.block_size} tokens"
            )
        if blocks < 2:
            raise SimctlError(_does_not_fit(d, memory, seqs))
    parts, ranks = d.parallel.parts, d.parallel.dp
    longest = model.max_context
    if engine_of(limits.engine).slots_own_context and not limits.options.get("kv_unified"):
        longest = max(1, min(longest, (blocks - 1) * limits.block_size // seqs))
    model_len = _model_len(d, blocks, longest)
    if held and limits.num_gpu_blocks is None and d.pages and len(d.layout.groups) > 1:
        blocks = max(blocks, 1 - -min(held[1], model_len) // limits.block_size)
    config = EngineConfig(
        scheduler=limits.engine,
        num_gpu_blocks=ranks * (blocks - 1) + 1,
        block_size=limits.block_size,
        max_num_seqs=ranks * seqs,
        max_num_batched_tokens=parts * budget,
        max_model_len=model_len,
        enable_prefix_caching=d.caches_prefixes,
        enable_chunked_prefill=limits.enable_chunked_prefill,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        policy=limits.policy,
        options=_with_host_link(d, {**limits.options, **_offloading(d, d.caches_prefixes)}),
        prefill_schedule_interval=limits.prefill_schedule_interval,
        engine_version=limits.engine_version,
        max_loras=ranks * limits.lora.adapters if limits.lora else 0,
    )
    return config, memory


def _check_host_kv(d: Deployment) -> None:
    """UsageError where no KV can be kept in host RAM."""
    if d.gpu.unified_memory:
        raise UsageError(f"{d.gpu.name} has one memory for CPU and GPU: KV cannot be kept in host RAM")
    if not d.model.kv_layers:
        raise UsageError(f"{d.model.name} has no KV that grows with the context: nothing to keep in host RAM")


def _does_not_fit(d: Deployment, memory: Memory, seqs: int) -> str:
    needs = format_bytes(memory.weights + memory.activations)
    what = f"weights, activations and {seqs} slots of recurrent state" if d.state_bytes and not d.pages else "weights and activations"
    if memory.free > 0:
        return (
            f"{d.model.name} on {d.placed}: {what} take {needs} per GPU, and the rest of {format_bytes(memory.allowed)} holds no KV block"
        )
    return (
        f"{d.model.name} does not fit on {d.placed}: {what} need {needs} per GPU, "
        f"and {d.limits.memory_share:g} of its memory is {format_bytes(memory.allowed)}"
    )


def _model_len(d: Deployment, blocks: int, longest: int) -> int:
    """Longest request, `blocks` in each rank's KV pool and at most `longest` by the model. Raises SimctlError where vLLM would not start.

    vLLM checks memory: a number of blocks that is given is taken as it is.
    """
    limits, pool = d.limits, (blocks - 1) * d.limits.block_size
    if limits.num_gpu_blocks is None and d.pages:
        check_states(d)
        pool = d.pool().longest(2 * max(longest, limits.max_model_len if isinstance(limits.max_model_len, int) else 0))
    if limits.max_model_len == "auto":
        return max(1, min(longest, pool))
    requested = limits.max_model_len or longest
    if limits.engine == "vllm" and limits.num_gpu_blocks is None and d.model.kv_layers and requested > pool:
        raise SimctlError(
            f"{d.model.name} on {d.placed}: the KV pool of {pool} tokens does not hold one request of max_model_len "
            f"{requested}: vLLM would not start; the longest that fits is --max-model-len {pool}, or auto"
        )
    return requested


def refused_seqs(d: Deployment, seqs: int) -> int | None:
    """Blocks of the pool, where vLLM started for `seqs` refuses to run: from 0.25 on, every sequence of a model with states needs one for
    graphs to be captured. None where it starts.
    """
    limits = d.limits
    if limits.engine != "vllm" or not d.pages or not d.model.state_layers or limits.enforce_eager or limits.num_gpu_blocks is not None:
        return None
    if numbers(limits.engine_version) < STARTS_NEED_STATES:
        return None
    _, budget = default_batch_limits(d.gpu, limits.engine)
    budget = limits.max_num_batched_tokens or max(budget, seqs)
    blocks = d.pool_in(d.memory_for(seqs, budget).free, budget).blocks
    return blocks if seqs > blocks else None


def check_states(d: Deployment) -> None:
    """Raises SimctlError for a max_num_seqs with which vLLM would not start."""
    seqs = d.limits.max_num_seqs
    if seqs is not None and (blocks := refused_seqs(d, seqs)) is not None:
        raise SimctlError(
            f"{d.model.name} on {d.placed}: max_num_seqs {seqs} is more than the {blocks} blocks for recurrent states: vLLM "
            f"{d.limits.engine_version} would not start; the most that starts is --max-num-seqs {blocks}"
        )


def _with_host_link(d: Deployment, options: dict[str, Any]) -> dict[str, Any]:
    """Options, with the rate of the card's link to host RAM where KV is kept there and nobody says it."""
    if not options.get("host_blocks") or "host_gb_per_s" in options:
        return options
    return options | {"host_gb_per_s": LINK_SHARE * d.gpu.host_link_bandwidth / 1e9}


def _offloading(d: Deployment, caching: bool) -> dict[str, int]:
    """The option of vLLM's that `kv_offloading_size` stands for: blocks of a host tier. Raises UsageError where there can be none."""
    limits, size = d.limits, d.limits.kv_offloading_size
    if size is None:
        return {}
    if not 0.0 < size < MOST_GIB:
        raise UsageError(f"KV offloading takes GiB above 0 and below {MOST_GIB:g}, not {size:g}")
    if limits.engine != "vllm":
        raise UsageError(f"KV offloading is vllm's; {limits.engine} has none here")
    if "host_blocks" in limits.options:
        raise UsageError("KV offloading and host_blocks are the same host RAM: give one of them")
    if d.gpu.unified_memory:
        raise UsageError(f"{d.gpu.name} has one memory for CPU and GPU: KV cannot be offloaded to host RAM")
    if limits.attention.placement == "host":
        raise UsageError("KV is in host RAM already: there is nothing to offload")
    if not caching:
        raise UsageError("KV offloading keeps prefix blocks: it needs prefix caching")
    blocks = d.parallel.dp * int(size * 2**30 / d.gpus // sum(_block_bytes(d)))
    if not blocks:
        raise UsageError(f"{size:g} GiB of host RAM hold no KV block of {limits.block_size} tokens")
    return {"host_blocks": blocks}


def _block_count(d: Deployment, memory: Memory, context: float | None = None) -> int:
    """KV blocks for which there is room, in HBM and, where KV lives there, in host RAM; of unlike groups, as many as hold requests of
    `context` tokens.
    """
    if d.pages or (d.limits.engine == "sglang" and d.limits.attention == DENSE):
        pool = d.pool_in(memory.free, d.batch_limits()[1])
        if d.pages and pool.blocks <= pool.layout.request_blocks(1):
            return 0
        return pool.token_blocks(float(d.longest) if context is None else context, d.limits.block_size)
    in_hbm, in_host = _block_bytes(d)
    room = [max(0.0, memory.free) // in_hbm] if in_hbm else []
    return int(min(room + ([d.limits.host_kv_bytes / d.gpus // in_host] if in_host else []), default=0))


def _block_bytes(d: Deployment) -> tuple[float, float]:
    """(bytes in HBM, bytes in host RAM) of one KV block of all layers, per GPU, the draft model's with it."""
    limits = d.limits
    share = d.parallel.stage_share(d.model)
    in_hbm, in_host = (share * b for b in block_bytes(d.model, d.precision, limits.block_size, limits.attention, d.tp))
    if limits.draft is not None:
        in_hbm += sum(block_bytes(limits.draft, d.precision, limits.block_size, DENSE, d.tp))
    return in_hbm, in_host


def blocks_in(d: Deployment, pool_bytes: float) -> int:
    """KV blocks of a pool of so many bytes per GPU."""
    return int(pool_bytes // _block_bytes(d)[0])


def kv_block_interval(d: Deployment, context: float | None = None) -> tuple[int, int] | None:
    """5-95 % of the KV blocks predicted from memory; None where the blocks are given, or where slots of state share the memory."""
    if d.limits.num_gpu_blocks is not None or (d.state_bytes and not d.pages):
        return None
    plan_engine(d)  # refuses what does not fit
    return _block_count(d, d.memory(0.95), context), _block_count(d, d.memory(0.05), context)


def mean_context(trace: Trace) -> float:
    """Tokens that a running request holds in the mean: one of p prompt and n output tokens p + n/2, for n iterations."""
    outputs = trace.output_tokens.astype(float)
    return float((outputs * (trace.prompt_tokens + outputs / 2)).sum() / outputs.sum())


def cap_at_knee(trace: Trace, d: Deployment, rates: Rates, tau: float) -> int:
    """The batch cap that keeps per-request decode efficiency t(1)/t(B) at `tau` or above, at the workload's mean context.

    At most MOST_SEQS.
    """
    context = mean_context(trace)

    def step_s(batch: int) -> float:
        return float(step_time_s(d.work(decode_batch(d.model, float(batch), context, d.limits.attention)), rates))

    return batch_cap(step_s, tau, MOST_SEQS)
