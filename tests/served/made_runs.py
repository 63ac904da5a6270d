"""Served runs made by the simulator itself, with a serving overhead that the tests know."""

from dataclasses import replace

import numpy as np

from calibrate.served.launches import HOSTS_LAUNCH
from calibrate.served.overhead import PROMPT_TOKEN_S, SERIAL_S, TOKEN_S
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from sim.cost.batch import decode_batch
from sim.cost.provenance import GIVEN
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.rates.priors import prior_rates
from sim.rates.serving import LAUNCHING, HostRates, hidden_work, scaled
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Limits

C0_S, EXPOSED, REQUEST_S = 0.9e-3, 0.3, 7e-3
RUN = ServedRun(
    "made",
    get_gpu("H100"),
    get_model("Qwen2.5-7B"),
    Precision(),
    Limits(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=32768),
    1,
    "the simulator",
    (),
)
IN_PROCESS = prior_rates(RUN.gpu, RUN.precision, draws=8)


def as_served(rates):
    """The truth behind the made runs."""
    point = replace(rates.point, c0_s=C0_S, c_seq_s=EXPOSED * rates.point.c_seq_s, c_prefill_s=EXPOSED * rates.point.c_prefill_s)
    return scaled(RateDraws(point, rates.draws, rates.sources, GIVEN), LAUNCHING, HOSTS_LAUNCH, 1.0, "as other hosts launch")


WORK = hidden_work(IN_PROCESS.point, as_served(IN_PROCESS).point)
HOST = HostRates(request_s=REQUEST_S, prompt_token_s=PROMPT_TOKEN_S["vllm"], serial_s=SERIAL_S, token_s=TOKEN_S, work=WORK)


def served(experiment):
    """The experiment with the times that the truth gives."""
    seen = replay(RUN, experiment, as_served(IN_PROCESS), HOST, draws=0)
    return replace(experiment, ttft_s=seen.ttft_s, e2el_s=seen.e2el_s, cached_tokens=seen.cached_tokens.astype(float))


def open_loop(name, rate, count, seed=0):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    blank = np.ones(count)
    lengths = np.full(count, 512), np.full(count, 64)
    return served(Experiment(name, "open", arrivals, *lengths, blank, blank * 2))


def rung(clients):
    """A ladder rung whose true-decode window is the price of its decode step."""
    prompt, output = 2048, 128
    shape = decode_batch(RUN.model, float(clients), prompt + output / 2)
    window = step_time_s(RUN.deployment.work(shape), as_served(IN_PROCESS).point)
    ones = np.ones(clients)
    lengths = np.full(clients, prompt), np.full(clients, output)
    sent = 1e-4 * np.arange(clients)  # one after the other
    return served(Experiment(f"n{clients}", "ladder", sent, *lengths, ones, 2 * ones, clients=clients, window_step_s=window))
