"""Simulator of LLM serving: `from sim import Deployment, Workload, simulate, what_if, load_rates`.

Names below are imported when they are first used, so that `import sim` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.closed_form.regime import RegimeMap, Regimes, regime_map
    from sim.closed_form.what_if import Answer, WhatIf, what_if
    from sim.cluster.admission import AdmissionLimits
    from sim.cost.rates import RateDraws, Rates
    from sim.errors import SimctlError, UsageError
    from sim.planning.answer import PlanAnswer
    from sim.planning.grid import deployments
    from sim.planning.question import Plan, plan
    from sim.rates.load import load_rates
    from sim.rates.serving import NO_HOST, HostRates
    from sim.rates.source import RateSource
    from sim.specs.gpus import get_gpu, list_gpus
    from sim.specs.models import get_model, list_models
    from sim.study.deployment import Deployment, Limits, kv_block_interval, plan_engine
    from sim.study.fleet_spec import Fleet, PoolSpec
    from sim.study.prices import TimeByTerm, gemm_time, step_time
    from sim.study.simulate import Run
    from sim.study.simulate_question import Simulate, simulate
    from sim.sweeps.sweep_question import Sweep, sweep
    from sim.workload.workload import Workload

_HOME = {
    "AdmissionLimits": "sim.cluster.admission",
    "Answer": "sim.closed_form.what_if",
    "Deployment": "sim.study.deployment",
    "Fleet": "sim.study.fleet_spec",
    "HostRates": "sim.rates.serving",
    "Limits": "sim.study.deployment",
    "NO_HOST": "sim.rates.serving",
    "Plan": "sim.planning.question",
    "PlanAnswer": "sim.planning.answer",
    "PoolSpec": "sim.study.fleet_spec",
    "RateDraws": "sim.cost.rates",
    "RateSource": "sim.rates.source",
    "Rates": "sim.cost.rates",
    "RegimeMap": "sim.closed_form.regime",
    "Regimes": "sim.closed_form.regime",
    "Run": "sim.study.simulate",
    "SimctlError": "sim.errors",
    "Simulate": "sim.study.simulate_question",
    "TimeByTerm": "sim.study.prices",
    "Sweep": "sim.sweeps.sweep_question",
    "UsageError": "sim.errors",
    "WhatIf": "sim.closed_form.what_if",
    "Workload": "sim.workload.workload",
    "deployments": "sim.planning.grid",
    "gemm_time": "sim.study.prices",
    "get_gpu": "sim.specs.gpus",
    "get_model": "sim.specs.models",
    "kv_block_interval": "sim.study.deployment",
    "list_gpus": "sim.specs.gpus",
    "list_models": "sim.specs.models",
    "load_rates": "sim.rates.load",
    "plan": "sim.planning.question",
    "plan_engine": "sim.study.deployment",
    "regime_map": "sim.closed_form.regime",
    "simulate": "sim.study.simulate_question",
    "step_time": "sim.study.prices",
    "sweep": "sim.sweeps.sweep_question",
    "what_if": "sim.closed_form.what_if",
}
__all__ = [
    "NO_HOST",
    "AdmissionLimits",
    "Answer",
    "Deployment",
    "Fleet",
    "HostRates",
    "Limits",
    "Plan",
    "PlanAnswer",
    "PoolSpec",
    "RateDraws",
    "RateSource",
    "Rates",
    "RegimeMap",
    "Regimes",
    "Run",
    "SimctlError",
    "Simulate",
    "Sweep",
    "TimeByTerm",
    "UsageError",
    "WhatIf",
    "Workload",
    "deployments",
    "gemm_time",
    "get_gpu",
    "get_model",
    "kv_block_interval",
    "list_gpus",
    "list_models",
    "load_rates",
    "plan",
    "plan_engine",
    "regime_map",
    "simulate",
    "step_time",
    "sweep",
    "what_if",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
