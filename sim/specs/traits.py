"""Traits of an architecture that configurations do not state: the flags of its building blocks, by model_type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Traits:
    """Flags of one architecture's blocks. None leaves a bias to the configuration's own field, False where it has none.

    norms: hidden-size norms of a layer that has mixer and MLP; norm_width: vectors in each (2 with a bias, 0 without weights)
    gated: MLP with a gate
    qk_norm: "" none, "head" one vector for all heads, "key" for keys alone, "full" one for the whole width, "heads" one for each head
    sinks: "" none, "all", "sliding"; gate of attention's output: "" none, "head", "full"; linear: what a recurrent layer is
    every: full attention in each so many layers where no list says it; router_bias: of experts' choice, kept in the checkpoint
    defaults: fields that published files leave out
    """

    norms: int = 2
    norm_width: int = 1
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True
    qk_norm: str = ""
    sinks: str = ""
    gate: str = ""
    linear: str = ""
    every: int = 0
    tied: bool = False
    head_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    final_norm: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)


LLAMA = Traits()
LAYER_NORM: dict[str, Any] = {"norm_width": 2}
NO_GATE: dict[str, Any] = {"gated": False}
GPT = Traits(**LAYER_NORM, **NO_GATE, qkv_bias=True, out_bias=True, mlp_bias=True, tied=True)
LATENT_MOE = Traits(router_bias=True)
HYBRID: dict[str, Any] = {"qk_norm": "head", "linear": "gdn"}

TRAITS: dict[str, Traits] = {
    # dense decoders of Llama's kind
    **dict.fromkeys(("internlm2", "internlm3", "iquestcoder", "exaone", "teleflm", "telechat3", "yi", "aquila", "xverse"), LLAMA),
    **dict.fromkeys(("ministral", "ministral3", "helium", "minicpm", "solar", "mistral_large3"), LLAMA),
    "hyperclovax": Traits(norms=4),
    "ernie4_5": Traits(tied=True),
    "smollm3": Traits(tied=True),
    "arcee": Traits(**NO_GATE),
    "mimo": Traits(qkv_bias=True, out_bias=False),
    "orion": Traits(**LAYER_NORM),
    "telechat2": Traits(qkv_bias=False, out_bias=True, mlp_bias=False),
    "telechat": Traits(qkv_bias=False, out_bias=True, mlp_bias=False),
    "step1": LLAMA,
    "apertus": Traits(**NO_GATE, qk_norm="head"),
    "jais2": Traits(**LAYER_NORM, **NO_GATE, qkv_bias=True, out_bias=True, mlp_bias=True),
    "nemotron": Traits(**LAYER_NORM, **NO_GATE),
    "stablelm": Traits(**LAYER_NORM, out_bias=False),
    "starcoder2": Traits(**LAYER_NORM, **NO_GATE, qkv_bias=True, out_bias=True, mlp_bias=True, tied=True),
    "phi": Traits(norms=1, **LAYER_NORM, **NO_GATE, qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True),
    "persimmon": Traits(**LAYER_NORM, **NO_GATE, qkv_bias=True, out_bias=True, mlp_bias=True, qk_norm="head"),
    "olmo": Traits(norm_width=0, final_norm=False),
    "olmo2": Traits(qk_norm="full"),
    "olmo3": Traits(qk_norm="full", every=4),
    "exaone4": Traits(qk_norm="head", every=4),
    "exaone4_5": Traits(qk_norm="head", every=4),
    "cohere": Traits(norms=1, tied=True),
    "cohere2": Traits(norms=1, tied=True, every=4),
    "cohere2_moe": Traits(norms=1, tied=True, every=4),
    "glm": Traits(out_bias=False),
    "glm4": Traits(norms=4, out_bias=False),
    "chatglm": Traits(out_bias=False, defaults={"seq_length": 8192}),
    "granite_swa": Traits(sinks="all", tied=True),
    "hunyuan_v1_dense": Traits(qk_norm="head"),
    "hunyuan": Traits(qk_norm="head"),
    "vaultgemma": Traits(tied=True, every=2),
    "rnj1": Traits(norms=4, qk_norm="head", tied=True),
    "plamo3": Traits(norms=4, qk_norm="head", every=8),
    "seed_oss_text": Traits(),
    "pangu_embedded": LLAMA,
    "pangu_pro_moe_v2": Traits(qk_norm="key", router_bias=True),
    "nanochat": Traits(norm_width=0, final_norm=False, **NO_GATE),
    "domyn_edge": LLAMA,
    "muse_glimmer_text": Traits(norms=4, gate="full", every=4),
    # decoders of GPT-2's time
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gptj": Traits(norms=1, **LAYER_NORM, **NO_GATE, qkv_bias=False, out_bias=False, mlp_bias=True, head_bias=True),
    "gpt_neox": Traits(**LAYER_NORM, **NO_GATE, qkv_bias=True, out_bias=True, mlp_bias=True),
    "opt": GPT,
    "bloom": replace(GPT, defaults={"max_position_embeddings": 2048}),
    "mpt": Traits(**NO_GATE, tied=True),
    "xglm": GPT,
    "falcon": Traits(norms=1, **LAYER_NORM, **NO_GATE, tied=True),
    # mixtures of experts
    "olmoe": Traits(qk_norm="full"),
    "flex_olmo": Traits(qk_norm="full"),
    "phimoe": Traits(**LAYER_NORM),
    "granitemoe": LLAMA,
    "granitemoeshared": LLAMA,
    "granitemoe_swa": Traits(sinks="all"),
    "dbrx": Traits(),
    "aria_text": Traits(),
    "ernie4_5_moe": Traits(tied=True, router_bias=True),
    "ernie4_5_vl_moe_text": Traits(tied=True, router_bias=True),
    "hunyuan_v1_moe": Traits(qk_norm="head"),
    "hy_v3": Traits(qk_norm="head", router_bias=True),
    "bailing_moe": Traits(qk_norm="field", out_bias=False),
    "bailing_moe_v2": Traits(qk_norm="head", router_bias=True, out_bias=False),
    "param2moe": Traits(qk_norm="field", router_bias=True, out_bias=False),
    "sarvam_moe": Traits(qk_norm="head", router_bias=True, defaults={"n_shared_experts": 1, "first_k_dense_replace": 1}),
    "glm4v_moe_text": Traits(qk_norm="field", router_bias=True, out_bias=False),
    "solar_open": Traits(router_bias=True, out_bias=False),
    "dots1": Traits(qk_norm="head", router_bias=True, out_bias=False),
    "exaone_moe": Traits(qk_norm="head", router_bias=True, every=4),
    "minimax_m2": Traits(qk_norm="full", router_bias=True),
    "minimax_m3": Traits(qk_norm="head", router_bias=True),
    "afmoe": Traits(norms=4, qk_norm="head", gate="full", router_bias=True, every=4),
    "beam": Traits(norms=4, qk_norm="head", gate="full", router_bias=True, every=6),
    "inkling_text": Traits(qk_norm="head", router_bias=True),
    "step3_text": Traits(),
    "flint": Traits(qk_norm="head", sinks="all"),
    "laguna": Traits(qk_norm="head", gate="head", router_bias=True),
    "mellum": Traits(qk_norm="head"),
    "mimo_v2_flash": Traits(sinks="sliding", router_bias=True),
    "mimo_v2": Traits(sinks="sliding", router_bias=True),
    "step3p7": Traits(qk_norm="head", router_bias=True),
    "step3p5": Traits(qk_norm="head", router_bias=True),
    "qwen3_vl_moe_text": Traits(qk_norm="head"),
    "qwen3_omni_moe_text": Traits(qk_norm="head"),
    # latent attention
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "sarvam_mla", "mistral4", "mistral4_text", "pangu_ultra_moe"), LATENT_MOE
    ),
    "axk1": Traits(router_bias=True),
    "minicpm3": Traits(tied=True),
    "youtu": Traits(tied=True),
    "hy_v4": Traits(router_bias=True, sinks="all", gate="full"),
    "dots3_note_text": Traits(router_bias=True, gate="head"),
    "deepseek": Traits(),
    # recurrent layers beside attention
    "glm5_next_text": Traits(linear="kda", router_bias=True),
    "kimi_linear": Traits(linear="kda", router_bias=True),
    "bailing_hybrid": Traits(linear="kda", router_bias=True, gate="head", every=6),
    "bailing_moe_linear": Traits(linear="lightning", router_bias=True),
    "minimax": Traits(linear="lightning"),
    "olmo_hybrid": Traits(linear="gdn", qk_norm="full"),
    "alice_ai": Traits(**HYBRID, shared_gate=True, gate="query"),
    "bamba": Traits(linear="mamba2"),
    "falcon_h1": Traits(linear="mamba2"),
    "granitemoehybrid": Traits(linear="mamba2"),
    "nemotron_h_puzzle": Traits(linear="mamba2", norms=1, router_bias=True, **NO_GATE),
    "nemotron_h": Traits(linear="mamba2", norms=1, router_bias=True, **NO_GATE),
    "jamba": Traits(linear="mamba"),
    "mamba": Traits(linear="mamba", tied=True, norms=1),
    "falcon_mamba": Traits(linear="mamba", tied=True, norms=1),
    "mamba2": Traits(linear="mamba2", norms=1),
    "lfm2": Traits(linear="conv", qk_norm="head", tied=True),
    "lfm2_moe": Traits(linear="conv", qk_norm="head", tied=True, router_bias=True),
    "lfm3": Traits(linear="conv", qk_norm="head", tied=True, norms=4, gate="head"),
    "recurrent_gemma": Traits(linear="lru", tied=True, mlp_bias=True, qkv_bias=False, out_bias=True),
}
# Text parts that are another architecture by another name.
SAME = {
    "qwen3_vl_text": "qwen3",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_audio_text": "qwen2",
    "qwen3_asr_text": "qwen3",
    "glm4v_text": "glm4",
    "glm_ocr_text": "glm4",
    "glm46v_text": "glm4",
    "minimax_m3_vl_text": "minimax_m3",
    "minimax_m3_text": "minimax_m3",
    "smollm": "llama",
    "rnj1_text": "rnj1",
    "mimo_v2_pro": "mimo_v2",
    "cohere_compass_text": "cohere2",
    "granite_moe": "granitemoe",
    "hunyuan_v1": "hunyuan_v1_dense",
    "kimi_k25_text": "deepseek_v3",
    "deepseek_vl_v2_text": "deepseek_v2",
    "mixtral_text": "mixtral",
    "voxtral_text": "llama",
    "granite4_vision_text": "granite",
    "exaone4_5_text": "exaone4",
    "muse_glimmer": "muse_glimmer_text",
    "PanguEmbedded": "pangu_embedded",
    "PanguProMoE": "pangu_pro_moe_v2",
    "pangu_pro_moe": "pangu_pro_moe_v2",
    "step3p5_text": "step3p5",
    "step3_vl_text": "step3_text",
    "paddleocr_vl_text": "ernie4_5",
}
