"""Simulator of LLM serving: `from sim import Deployment, Workload, simulate, what_if, load_rates`.

Names below are imported when they are first used, so that `import sim` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.closed_form.regime import RegimeMap, regime_map
    from sim.closed_form.what_if import Answer, what_if
    from sim.cluster.admission import AdmissionLimits
    from sim.cost.rates import RateDraws, Rates
    from sim.errors import SimctlError, UsageError
    from sim.rates.load import load_rates
    from sim.rates.serving import NO_HOST, HostRates
    from sim.specs.gpus import get_gpu, list_gpus
    from sim.specs.models import get_model, list_models
    from sim.study.deployment import Deployment, Limits, plan_engine
    from sim.study.fleet_spec import Fleet, PoolSpec
    from sim.study.simulate import Run, simulate
    from sim.workload.workload import Workload

_HOME = {
    "AdmissionLimits": "sim.cluster.admission",
    "Answer": "sim.closed_form.what_if",
    "Deployment": "sim.study.deployment",
    "Fleet": "sim.study.fleet_spec",
    "HostRates": "sim.rates.serving",
    "Limits": "sim.study.deployment",
    "NO_HOST": "sim.rates.serving",
    "PoolSpec": "sim.study.fleet_spec",
    "RateDraws": "sim.cost.rates",
    "Rates": "sim.cost.rates",
    "RegimeMap": "sim.closed_form.regime",
    "Run": "sim.study.simulate",
    "SimctlError": "sim.errors",
    "UsageError": "sim.errors",
    "Workload": "sim.workload.workload",
    "get_gpu": "sim.specs.gpus",
    "get_model": "sim.specs.models",
    "list_gpus": "sim.specs.gpus",
    "list_models": "sim.specs.models",
    "load_rates": "sim.rates.load",
    "plan_engine": "sim.study.deployment",
    "regime_map": "sim.closed_form.regime",
    "simulate": "sim.study.simulate",
    "what_if": "sim.closed_form.what_if",
}
__all__ = [
    "NO_HOST", "AdmissionLimits", "Answer", "Deployment", "Fleet", "HostRates", "Limits", "PoolSpec", "RateDraws", "Rates", "RegimeMap",
    "Run", "SimctlError", "UsageError", "Workload", "get_gpu", "get_model", "list_gpus", "list_models", "load_rates", "plan_engine",
    "regime_map", "simulate", "what_if",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
