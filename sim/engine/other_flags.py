"""Flags of servers that no setting here stands for: those that change no time, those whose effect is small and why, and those that would
move an answer, which refuse the question.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Names, ports, logs, keys, where weights come from, what a request may ask for: they change no time
SILENT = re.compile(
    r"m|host|port|uds|grpc.*|served-model-name|model-name|model-id|model-dir|model-tag|api-key.*|trust-remote-code|(no-)?download-dir|"
    r"tokenizer.*|skip-tokenizer-init|(default-)?chat-template.*|.*log.*|(code-)?revision|(random-)?seed|root-path|fastapi-root-path|allowed-.*|"
    r"ssl-.*|enable-auto-tool-choice|tool-(call-parser|parser-plugin|server)|reasoning-(parser.*|format|budget|config)|uvicorn.*|response-role|"
    r"load-format|model-loader-extra-config|ignore-patterns|use-tqdm-on-load|safetensors-.*|middleware|lora-modules|hf-token|hf-config-path|"
    r"config-format|model-impl|(override-)?generation-config|logits-processors|enable-prompt-embeds|enable-sleep-mode|"
    r"fa|flash-attn|cb|cont-batching|(no-)?jinja|alias|a|mlock|(no-)?mmap|no-webui|webui|metrics|props|slots|no-slots|slot-.*|v|verbose|"
    r"(enable-)?metrics.*|show-hidden-metrics.*|collect-detailed-traces|otlp.*|.*metrics|enable-cache-report|enable-prompt-tokens-details|"
    r"enable-(server-load-tracking|force-include-usage|request-id-headers|tokenizer-info-endpoint|offline-docs|trace)|(no-)?disable-.*logs?|"
    r"disable-(fastapi-docs|uvicorn.*|frontend-multiprocessing)|h11-.*|headless|data-parallel-(address|rpc-port|backend|rank|start-rank)|"
    r"master-(addr|port)|node-rank|dist-(init-addr|timeout)|nccl-.*|device|dev|base-gpu-id|gpu-id-step|worker-(cls|extension-cls)|"
    r"max-parallel-loading-workers|ray-.*|kv-events-config|profiler-.*|prefix-caching-hash-algo|backend|env|tp-rank|"
    r"allow-(auto-truncate|deprecated.*)|(skip-)?server-warmup|warmups|no-warmup|watchdog-timeout|soft-watchdog.*|crash-.*|show-time-cost|"
    r"t|threads.*|tb|C|cpu-.*mask.*|prio.*|poll.*|numa|n|predict|n-predict|temp|top-[kp]|min-p|top-nsigma|typical|xtc.*|dry.*|mirostat.*|"
    r"repeat-.*|presence-penalty|frequency-penalty|dynatemp.*|samplers|sampling-seq|grammar.*|json-schema.*|(no-)?context-shift|keep|"
    r"rope-.*|yarn-.*|defrag-thold|mmproj.*|timeout|to|prefill-assistant|fit.*|offline|hf-file|hff|hfv.*|model-url|mu|lora.*-path|"
    r"disaggregation-(?!mode).*|is-(prefill|decode)-worker|disaggregation-mode|namespace|endpoint|component|store-kv|discovery-backend|"
    r"enable-dp-attention|request-plane|event-plane|migration-limit|custom-jinja.*|dyn-.*|publish-events.*|bootstrap-port|connector|sampling-defaults|preferred-.*"
)
# What is priced otherwise or not at all, and why that is let be
SMALL: dict[str, str] = {
    "guided-decoding-backend|structured-outputs-config|grammar-backend|sampling-backend": "acts on requests with a grammar alone",
    "(prefill-|decode-|mm-encoder-)?(attention|attn)-(backend|config)|.*moe-(backend|runner-backend)|linear-backend|fp[48]-gemm.*|"
    "kernel-config": ("the engine's own choice of kernels is priced"),
    "limit-mm-per-prompt|mm-.*|media-io-kwargs|interleave-mm-strings|skip-mm-profiling|video-.*|enable-multimodal|"
    "disable-chunked-mm-input|image-.*": "text requests are asked",
    "swap-space|use-v2-block-manager|preemption-mode|max-num-partial-prefills|max-long-partial-prefills|num-lookahead-slots|"
    "max-seq-len-to-capture": "without effect since vLLM V1",
    "distributed-executor-backend|data-parallel-size-local|data-parallel-(hybrid|external)-lb|load-balance-method|nnodes|nodes": (
        "where ranks stand: --parallel gpus-per-node=N says it"
    ),
    "disable-custom-all-reduce|enable-(flashinfer-allreduce-fusion|nccl-nvls|symm-mem|torch-symm-mem)|all2all-backend|moe-a2a-backend|"
    "deepep-mode|deepep-config": "all-reduces are priced as measured, by the engine's own choice",
    "api-server-count|tokenizer-worker-num": "one API server is priced, which is too slow in crowds: --host-rate token_s=S",
    "stream-interval|stream-output": "tokens are sent one by one, which is too slow in crowds: --host-rate token_s=S",
    "(no-)?enable-(eplb|expert-parallel-load.*)|eplb-.*|expert-placement-strategy|num-redundant-experts|ep-num-redundant-experts|"
    "init-expert-location|ep-dispatch-algorithm": "experts are taken to be loaded evenly",
    "calculate-kv-scales|cuda-graph-(sizes|bs)|cudagraph-capture-sizes|max-cudagraph-capture-size|enable-dp-lm-head|"
    "moe-dense-tp-size": "small",
    "max-cpu-loras|fully-sharded-loras|lora-extra-vocab-size|lora-dtype|lora-backend|default-mm-loras": "adapters are taken to be resident",
    "additional-config|performance-mode|disable-cascade-attn|enable-torch-compile|torch-compile-max-bs|disable-radix-cache-.*": "small",
    "kv-offloading-backend": "the engine's own is priced",
    "mamba-(block-size|cache-mode|backend|full-memory-ratio|scheduler-strategy|track-interval)": "states are kept as by default",
    "max-concurrency|max-waiting-.*|max-queued-requests": "what is turned away: --admission max-queue=N says it",
    "max-logprobs|logprobs-mode": "acts on requests that ask for log probabilities",
    "cache-reuse|cache-prompt|no-cache-prompt|cram|cache-ram|ctx-checkpoints|swa-checkpoints|sps|slot-prompt-similarity": (
        "prompts are found in the slots alone"
    ),
    "main-gpu|mg|split-mode|sm": "layers are split evenly",
}
_SMALL = [(re.compile(pattern), why) for pattern, why in SMALL.items()]

DRAFTS = "drafts are simulated for vllm alone: --engine vllm --engine-option draft_tokens=N --engine-option drafter=eagle (or mtp)"
WRITES = "servers that write text are simulated alone"
_HOST = "weights in host memory are not simulated; choose GPUs or a dtype whose memory holds them"


def _above(most: int) -> Callable[[str], bool]:
    return lambda value: not value.isdecimal() or int(value) > most


def _always(value: str) -> bool:
    return True


def _not(*harmless: str) -> Callable[[str], bool]:
    return lambda value: value.lower() not in harmless


# Flag -> (whether this value moves an answer, what to do)
MOVES: dict[str, tuple[Callable[[str], bool], str]] = {
    "decode-context-parallel-size|dcp|prefill-context-parallel-size|pcp|attn-cp-size|enable-.*context-parallel.*|cp-size": (
        _above(1),
        "context parallelism is not simulated",
    ),
    "cpu-offload-gb|offload-group-size|offload-num-in-group|cpu-offload-params": (_not("0", "0.0"), _HOST),
    "n-cpu-moe|ncmoe": (_not("0"), f"experts of layers on the CPU: {_HOST}"),
    "cpu-moe|cmoe": (_not("false"), f"experts on the CPU: {_HOST}"),
    "override-tensor|ot": (_always, f"tensors placed one by one: {_HOST}"),
    "no-kv-offload|nkvo": (_not("false"), "KV in host memory under llama.cpp is not simulated"),
    "tensor-split|ts": (_always, "cards with unequal shares are not simulated"),
    "swa-full|kvu-off": (_not("false"), "windows with the KV of the whole context are not simulated"),
    "speculative-(?!config).*|num-speculative-tokens": (_always, DRAFTS),
    "model-draft|md|draft.*|spec-type|spec-.*": (_always, DRAFTS),
    "connector": (lambda value: "kvbm" in value.lower(), "KVBM of Dynamo is not simulated; vllm's tier is: --kv-offloading-size GB"),
    "enable-hierarchical-cache|hicache-.*": (_not("false"), "KV tiers of SGLang are not simulated; vllm's are: --kv-offloading-size GB"),
    "enable-lmcache|lmcache-.*": (_not("false"), "LMCache under SGLang is not simulated; vllm's host tier is: --kv-offloading-size GB"),
    "enable-two-batch-overlap|enable-single-batch-overlap|enable-dbo|dbo-.*": (
        _not("false", "0"),
        "overlap of two half batches is not simulated",
    ),
    "additional-config": (
        lambda value: "sparse_decode" in value,
        "decodes that read selected blocks are simulated of no server: simctl what-if --stack vllm+kernels",
    ),
    "enable-mixed-chunk": (_not("false"), "mixed chunks of SGLang are not simulated"),
    "num-continuous-decode-steps|num-scheduler-steps": (_above(1), "several steps for one decision are not simulated"),
    "schedule-conservativeness": (_not("1", "1.0"), "give --engine-option init_new_token_ratio=X instead"),
    "scheduler-cls": (_always, "another scheduler: --engine DOTTED.PATH of its class"),
    "hf-overrides|json-model-override-args|rope-scaling": (
        _not("", "{}"),
        "fields of the configuration are changed: write them into a config.json and give its path as --model",
    ),
    "disable-hybrid-kv-cache-manager|kv-sharing-fast-prefill|disable-sliding-window": (
        _not("false"),
        "KV of windows is sized as by the engine's default alone",
    ),
    "mamba-(ssm-)?(cache-)?dtype": (_not("auto", "float32"), "recurrent states are taken as float32"),
    "max-mamba-cache-size": (_always, "slots of states are sized as by default alone"),
    "embedding|embeddings|reranking|pooling|is-embedding": (_not("none"), WRITES),
    "task|runner|convert": (_not("auto", "generate", "none"), WRITES),
    "power-limit|gpu-power-limit": (_always, "the rates are those of cards at their own limit"),
}
_MOVES = [(re.compile(pattern), moves, what) for pattern, (moves, what) in MOVES.items()]


def refusal(flag: str, value: str) -> str:
    """Why a flag refuses the question; nothing where it does not."""
    for pattern, moves, what in _MOVES:
        if pattern.fullmatch(flag):
            return what if moves(value) else ""
    return ""


def known_without_effect(flag: str) -> str | None:
    """Why a flag's effect is let be: nothing to say of names, ports and logs, a reason for others; None for a flag that is not known."""
    if SILENT.fullmatch(flag):
        return ""
    small = next((why for pattern, why in _SMALL if pattern.fullmatch(flag)), None)
    return "" if small is None and any(pattern.fullmatch(flag) for pattern, _, _ in _MOVES) else small
