"""Declared priors of the rates: datasheet x efficiency, and the published numbers where there are some.

Every rate is log-normal, with a median and the standard deviation `sigma` of its logarithm: exp(1.645*sigma) is its 5-95 % factor.
Efficiencies are bounded by the datasheet (draws are clipped at 1). These stand in until a posterior exists for the GPU; answers say so.
Published numbers: package data `scenarios/data/reference` (brl07, gb10, gdn).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sim.cost.gemm import GEMM_KERNELS, MEASURED_AT, measured, roofline
from sim.cost.mixer_work import ATTENTION_KERNELS
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import RateDraws, Rates
from sim.specs.gpu import GpuSpec
from sim.specs.precision import Precision, arithmetic


@dataclass(frozen=True, slots=True)
class Prior:
    """Log-normal prior of one rate, optionally clipped from above (a datasheet peak cannot be exceeded)."""

    median: float
    sigma: float
    basis: str
    upper: float = float("inf")
    origin: Origin = Origin.PRIOR

    @property
    def provenance(self) -> Provenance:
        """As the source of a rate that was not learnt."""
        return Provenance(self.origin, self.basis)


# Published fit, whole model on H100 (brl07/cost_model_params.csv): beta 3.05 TB/s, c0 3.2 ms, c1 1.7 ms at k = 8 and 3.3 ms at k = 32, for
# 28 layers. That fit charges all 7.62 G parameters; here the input embedding is not read, so its 1.09 GB / 3.05 TB/s go back into c0.
_BRL_LAYERS = 28
_BRL_LAYER_KERNELS = 5.0 + ATTENTION_KERNELS + 4.0 * GEMM_KERNELS  # two norms, rotary, KV write, activation; four GEMMs
_KERNEL_S = 2.2e-6
_BRL_EMBEDDING_BYTES = 152064 * 3584 * 2
_H100_BETA, _H100_C0, _H100_C1 = 3.05e12, 3.2e-3, {8: 1.7e-3, 32: 3.3e-3}
# Implied for H200 by the published 89-96 tok/s, 1.77x and 2.4x (brl07/derived_h200_implied_params.csv).
_H200_BETA, _H200_C0, _H200_C1_K32 = 4.54e12, 3.27e-3, 3.79e-3


def c1_rates(c1_low: float, c1_high: float, k_low: int = 8, k_high: int = 32) -> tuple[float, float]:
    """(c1_s per layer, c1_unit_s per layer and block) of the line through two published c1(k), for 28 layers."""
    slope = (c1_high - c1_low) / (k_high - k_low)
    return (c1_low - slope * k_low) / _BRL_LAYERS, slope / _BRL_LAYERS


_C1_S, _C1_UNIT_S = c1_rates(_H100_C1[8], _H100_C1[32])

# Efficiency priors: fraction of the datasheet peak reached, (median, sigma), wide enough for both tuned and plain stacks.
_EFFICIENCY: dict[str, tuple[float, float]] = {
    "beta": (0.85, 0.10),
    "beta_expert": (0.82, 0.12),
    "beta_kv": (0.85, 0.12),
    "beta_state": (0.78, 0.12),
    "linear_flops_per_s": (0.60, 0.20),
    "attention_flops_per_s": (0.40, 0.30),
    "link_bytes_per_s": (0.78, 0.12),
    "comm_bytes_per_s": (0.60, 0.30),
    "expert_flops_per_s": (0.50, 0.30),
}
GEMM_RATES = ("linear_flops_per_s", "expert_flops_per_s")  # of GEMMs: their share of the peak changes with the GPU's size
# 8-bit GEMMs reach less of their peak than 16-bit ones of theirs: prefill of 2,048 to 8,192 tokens of two fp8 models on an H100, in
# process, is then as measured within 1 %.
EIGHT_BITS = 0.88


def flops_for(gpu: GpuSpec, dtype: str) -> tuple[float, str]:
    """Dense flop/s used for GEMMs in `dtype`, and the dtype really used: 16-bit where the GPU lacks the narrower one."""
    used = arithmetic(dtype, gpu)
    return float(gpu.flops[used]), used


def gemm_flops(gpu: GpuSpec, dtype: str) -> float:
    """Flop/s of a GEMM in `dtype` where one in 16 bits would reach its peak."""
    peak, used = flops_for(gpu, dtype)
    return peak * (EIGHT_BITS if used in ("fp8", "int8") else 1.0)


def gpu_link(gpu: GpuSpec) -> float:
    """Peak bytes/s between GPUs: of their direct link, else of the host link. Two cards on PCIe 4 and on 5 reach 0.58 of it each."""
    return gpu.gpu_link_bandwidth or gpu.host_link_bandwidth


def _datasheet(gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    linear, used = flops_for(gpu, precision.weights)
    sixteen, _ = flops_for(gpu, "bf16")
    peaks = {
        "beta": (gpu.memory_bandwidth, "memory bandwidth"),
        "beta_expert": (gpu.memory_bandwidth, "memory bandwidth"),
        "beta_kv": (gpu.memory_bandwidth, "memory bandwidth"),
        "beta_state": (gpu.memory_bandwidth, "memory bandwidth"),
        "linear_flops_per_s": (linear, f"{used} dense flops"),
        "attention_flops_per_s": (sixteen, "16-bit dense flops"),
        "link_bytes_per_s": (gpu.host_link_bandwidth, "host link"),
        "comm_bytes_per_s": (gpu_link(gpu), "GPU-GPU link"),
        "expert_flops_per_s": (linear, f"{used} dense flops"),
    }
    out = {}
    for name, (peak, what) in peaks.items():
        efficiency, sigma = _EFFICIENCY[name]
        if name in GEMM_RATES:
            efficiency *= gemm_flops(gpu, precision.weights) / linear
        out[name] = Prior(efficiency * peak, sigma, f"datasheet {what} x {efficiency:g}", upper=peak)
    return out


def _measured(gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    """Bandwidth of linear layers where their GEMMs were measured: that of the fastest one."""
    known = measured().get(gpu.name) if gpu.origin == "catalogue" and precision.weights == MEASURED_AT else None
    if known is None:
        return {}
    return {"beta": Prior(roofline(known).bytes_per_s, 0.004, "GEMMs measured alone", gpu.memory_bandwidth)}


def _generic(gpu: GpuSpec) -> dict[str, Prior]:
    return {
        "c0_s": Prior(_fixed_s(_H100_C0, _H100_BETA), 0.60, "prior around the published H100 fit"),
        "c_seq_s": Prior(16e-6, 0.50, "prior, 16 us"),
        "c_prefill_s": Prior(1.0e-3, 0.70, "prior, 1 ms"),
        "launch_layer_s": Prior(0.4e-3, 0.40, "prior, 0.4 ms per layer launched outside a captured graph"),
        "kernel_s": Prior(_KERNEL_S, 0.03, "prior, 2.2 us per small kernel, as profiles of engine iterations have it"),
        "c1_s": Prior(_C1_S, 0.60, "prior around the published H100 c1(k); it does not transfer between platforms"),
        "c1_unit_s": Prior(_C1_UNIT_S, 0.60, "prior around the published H100 c1(k)"),
        "gather_s": Prior(0.25e-3, 1.20, "prior, 0.25 ms per layer: from zero-copy reads to host-side gathers"),
        "comm_latency_s": _all_reduce_s(gpu),
    }


def _all_reduce_s(gpu: GpuSpec) -> Prior:
    """Latency of an all-reduce. The kernel takes 4.3 us for a few kB over two H100s from a CUDA graph, 4.6 over eight, 5 over A100s, 7 over
    B200s. GPUs wait for one another: decodes of two dense models, served over two H100s, took 4.4 us more for each.
    """
    if gpu.gpu_link_bandwidth:
        return Prior(9e-6, 0.25, "prior, 9 us per all-reduce, half of it a kernel from a CUDA graph, half waiting for another GPU")
    return Prior(20e-6, 0.70, "prior, 20 us per all-reduce through the host, unmeasured")


def _fixed_s(published_c0_s: float, published_beta: float) -> float:
    """c0 of this formula for a published whole-model fit: with the embedding that it charges, less small kernels and products' floors."""
    return published_c0_s + _BRL_EMBEDDING_BYTES / published_beta - _BRL_LAYERS * _BRL_LAYER_KERNELS * _KERNEL_S


def _published(gpu: GpuSpec) -> Mapping[str, Prior]:
    """Published numbers for a catalogue GPU; empty when there are none, and for a user's own datasheet whatever name it carries."""
    return {name: replace(prior, origin=Origin.PUBLISHED) for name, prior in _printed(gpu).items()}


def _printed(gpu: GpuSpec) -> Mapping[str, Prior]:
    name = gpu.name if gpu.origin == "catalogue" else ""
    if name in ("H100-SXM", "H100"):
        why = "published H100 fit (brl07)"
        return {
            "beta": Prior(_H100_BETA, 0.02, why, 3.35e12),
            "beta_kv": Prior(_H100_BETA, 0.02, why, 3.35e12),
            "c0_s": Prior(_fixed_s(_H100_C0, _H100_BETA), 0.05, why),
            "c1_s": Prior(_C1_S, 0.05, why),
            "c1_unit_s": Prior(_C1_UNIT_S, 0.05, why),
        }
    if name == "H200":
        why = "implied by published H200 ratios (brl07)"
        scale = _H200_C1_K32 / _H100_C1[32]
        return {
            "beta": Prior(_H200_BETA, 0.03, why, 4.8e12),
            "beta_kv": Prior(_H200_BETA, 0.03, why, 4.8e12),
            "c0_s": Prior(_fixed_s(_H200_C0, _H200_BETA), 0.08, why),
            "c1_s": Prior(_C1_S * scale, 0.10, why),
            "c1_unit_s": Prior(_C1_UNIT_S * scale, 0.10, why),
        }
    if name == "A10":
        # 0.4 tok/s x 60.1 GB is 24 GB/s over the link. 6.1 tok/s at k = 32 leaves, after weights, c0, c1 and the keep-set's bytes,
        # about 4 ms a layer for the host-side gather: the only published number there is for it, so it is taken as this GPU's.
        return {
            "link_bytes_per_s": Prior(24.0e9, 0.08, "published A10 dense-from-host floor (brl07/tiering.csv)", 32e9),
            "gather_s": Prior(a10_gather_s(), 0.15, "implied by published A10 tiered 6.1 tok/s (brl07/tiering.csv)"),
        }
    if name == "GB10":
        return {"beta_state": Prior(0.78 * 273e9, 0.06, "published 74-81 % of 273 GB/s (gdn/recurrence_efficiency.csv)", 273e9)}
    return {}


def a10_gather_s() -> float:
    """Seconds per layer that the published 6.1 tok/s (A10, 1M tokens, k = 32, KV in host RAM) leaves for the host-side gather."""
    weights_s = (7_615_616_512 * 2 - _BRL_EMBEDDING_BYTES) / (0.85 * 600e9)
    c0_s = _H100_C0 + _BRL_EMBEDDING_BYTES / _H100_BETA
    keep_tokens = 128 + 512 + 32 * 128
    fetch_s = keep_tokens * 57344 / 24.0e9
    scan_s = 2**20 / 128 * 57344 / (0.85 * 600e9)
    return (1 / 6.1 - weights_s - c0_s - _H100_C1[32] - fetch_s - scan_s) / _BRL_LAYERS


def priors(gpu: GpuSpec, precision: Precision, *, published: bool = True) -> dict[str, Prior]:
    """The prior of every rate for one GPU and precision; published numbers win over the datasheet unless they are left out."""
    own = _published(gpu) if published else {}
    return {**_generic(gpu), **_datasheet(gpu, precision), **_measured(gpu, precision), **own}


def prior_rates(gpu: GpuSpec, precision: Precision | None = None, *, draws: int = 1000, seed: int = 0) -> RateDraws:
    """Draw the rates of `gpu` from their declared priors; same seed, same draws, whatever the GPU (common random numbers)."""
    chosen = priors(gpu, precision or Precision())
    published = sorted({p.basis for p in _published(gpu).values()})
    summary = f"declared priors for {gpu.name}: " + (f"{'; '.join(published)}; rest " if published else "")
    return drawn(chosen, Provenance(Origin.PRIOR, summary + "datasheet x efficiency, wide interval"), draws, seed)


def drawn(chosen: Mapping[str, Prior], source: Provenance, draws: int, seed: int) -> RateDraws:
    """Draws [draws] of the rates from these priors, clipped at what bounds them."""
    rng = np.random.default_rng(seed)
    names = list(Rates.__dataclass_fields__)
    normal = rng.standard_normal((len(names), draws))
    # weights and KV cross the same memory: most of what is unknown about one is unknown about the other
    iw, ik = names.index("beta"), names.index("beta_kv")
    normal[ik] = 0.8 * normal[iw] + 0.6 * normal[ik]
    values = {
        name: np.minimum(chosen[name].median * np.exp(chosen[name].sigma * z), chosen[name].upper)
        for name, z in zip(names, normal, strict=True)
    }
    return RateDraws(
        point=Rates(**{name: chosen[name].median for name in names}),
        draws=Rates(**values),
        sources={name: chosen[name].provenance for name in names},
        source=source,
    )
