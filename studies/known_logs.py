"""Logs of a llama.cpp server that the simulator made at known rates, learnt from: how many of them give these rates back.

    python -m studies.known_logs [LOGS]

Truths are drawn from what `simctl learn --engine llamacpp` starts from. A log gives its rates back when the sample passes its gates and a
decode step and a prompt take what they took at the truth, within ENOUGH, at the medians learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from calibrate.logs.learn import HOST, Learnt, learn_rates, served_priors
from calibrate.sampling import Settings
from calibrate.served.runs import ServedRun
from calibrate.steps.random_rates import value
from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.rates.serving import host_of_log
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Limits
from studies.program import program
from studies.sbc.served import Load, made_log

LOGS, ENOUGH = 20, 0.05
LOAD = Load(30, (0.8,), (32, 512), (8, 24))
SETTINGS = Settings(draws=600, tune=600, chains=4)


def made_run() -> ServedRun:
    """A server of eight slots on a GB10."""
    limits = Limits(engine="llamacpp", max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=1024)
    return ServedRun("made", get_gpu("GB10"), get_model("Llama-3.1-8B"), Precision("nvfp4"), limits, 1, "the simulator", ())


def step_times(run: ServedRun, rates: Rates) -> tuple[float, float]:
    """Seconds of a decode step of four sequences, and of a prompt of 256 tokens."""
    shapes = (decode_batch(run.model, 4.0, 300.0), mixed_batch(run.model, [], [(256, 256, 1.0)]))
    works = (iteration_work(run.model, shape._replace(padding=0.0, pieces=0.0), run.precision) for shape in shapes)
    decode, prompt = (float(step_time_s(work, rates)) for work in works)
    return decode, prompt


def returned(run: ServedRun, learnt: Learnt, truth: Rates) -> tuple[float, float]:
    """Errors of `step_times` at the medians learnt."""
    medians = Rates(**{name: float(np.median(getattr(learnt.rates, name))) for name in UNITS})
    decode, prompt = (mine / theirs - 1 for mine, theirs in zip(step_times(run, medians), step_times(run, truth), strict=True))
    return decode, prompt


@program("studies.known_logs")
def main(argv: Sequence[str]) -> int:
    run, logs = made_run(), int(argv[0]) if argv else LOGS
    priors, _ = served_priors(run)
    back = inside = shown = 0
    print("log  decode  prompt  gates")
    for number in range(logs):
        rng = np.random.default_rng([53, number])
        truth = Rates(**{name: float(value(priors[name], rng.standard_normal())) for name in UNITS})
        host_s = float(value(HOST, rng.standard_normal()))
        log = made_log(run, truth, host_of_log(host_s, text=False), rng, LOAD)
        learnt = learn_rates(run, log, priors, SETTINGS)
        errors, gates = returned(run, learnt, truth), learnt.diagnostics.failures()
        back += not gates and max(map(abs, errors)) <= ENOUGH
        for name in learnt.free:
            low, high = np.quantile(getattr(learnt.rates, name), [0.05, 0.95])
            inside, shown = inside + bool(low <= getattr(truth, name) <= high), shown + 1
        print(f"{number:3d}{errors[0]:+8.1%}{errors[1]:+8.1%}  {'; '.join(gates) or 'passed'}", flush=True)
    print(f"{back} of {logs} logs give their rates back, within {ENOUGH:.0%}; {inside} of {shown} rates lie in their 90 %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
