"""Serving at one context: time to first token, decode speed, cost, how many users fit, and what would make more of them fit.

Closed form of an engine that is never idle. Of L users at once each has its request answered in
R(L) = h + L p + o t(L) seconds: h the API server's time, p the prefill of one prompt alone, o output tokens at t(L) seconds a decode step
of L sequences; while one is answered, each of the others has its prompt read once. Simulated closed loops that fit the memory take 0 to 2 %
less (a mixture of experts at 16 users 11 %: prompts share iterations with decodes).
N users who think Z seconds are L = N R(L) / (R(L) + Z) at once (Little's law).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.closed_form.fixes import Fix, fixes
from sim.closed_form.prefill import prefill_times
from sim.closed_form.what_if_options import Interval, interval
from sim.cost.batch import decode_batch
from sim.cost.rates import RateDraws, Rates
from sim.cost.step_time import binding_term, step_terms, step_time_s
from sim.deployment.memory import n_max
from sim.namespaces import FLOAT
from sim.rates.serving import HostRates
from sim.shown import Figures, Shown
from sim.specs.attention_policy import dense
from sim.study.deployment import Deployment
from sim.units import format_seconds

if TYPE_CHECKING:
    from sim.closed_form.what_if import WhatIf

PROMPTS = "prompts of others"
OUTPUT_TOKENS = 128  # of an answer, unless it is said
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """So many users at once, each sending its next request when it has its answer; tok/s are output tokens, those of each user over the
    time from its first token to its last.
    """

    users: int
    tokens_per_s: Interval
    answer_s: Interval
    total_tokens_per_s: float
    usd_per_mtok_out: float | None
    binds: str


@dataclass(frozen=True, slots=True, repr=False)
class Serving(Shown):
    """The answer. `ttft_s` is that of a request alone; `fit` users have room, `fit_90` over what is not known of the engine's own memory;
    `wanted` are at once if they have room, of `question.users` who think. Costs are None on a card without a price.
    """

    question: WhatIf
    ttft_s: Interval
    fit: int
    fit_90: tuple[float, float]
    wanted: int | None
    loads: list[Load]
    usd_per_mtok_in: float | None
    fixes: list[Fix]  # none where all that are wanted fit
    wait_s: float  # that each request of `users` waits for room
    rates: RateDraws

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        first = [("first token", format_seconds(self.ttft_s.point)), ("users that fit", str(self.fit))]
        loads = [(f"{load.users} at once", f"{load.tokens_per_s.point:.3g} tok/s each, {load.binds}") for load in self.loads]
        return self.question.shown()[0], [*first, *loads, *(("fix", fix.change) for fix in self.fixes[:1])]

    @property
    def output_tokens(self) -> int:
        """Output tokens of a request."""
        return self.question.output_tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "prompt_tokens": prompt_tokens(self.question.context, self.output_tokens),
            "output_tokens": self.output_tokens,
            "ttft_s": asdict(self.ttft_s),
            "users_fit": self.fit,
            "users_fit_90": list(self.fit_90),
            "users_at_once": self.wanted,
            "wait_s": self.wait_s,
            "usd_per_mtok_in": self.usd_per_mtok_in,
            "loads": [asdict(load) for load in self.loads],
            "fixes": [asdict(fix) for fix in self.fixes],
        }


def prompt_tokens(context: int, output_tokens: int) -> int:
    """Tokens of the prompt of a context that ends with the answer."""
    return max(1, context - output_tokens)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a deployment's requests, at the medians and at draws of the rates."""

    deployment: Deployment
    prompt: int
    output: int
    rates: RateDraws
    host: HostRates
    prefill: tuple[float, Array]

    @classmethod
    def of(cls, d: Deployment, prompt: int, output: int, rates: RateDraws, host: HostRates) -> Times:
        """The prompt priced once."""
        return cls(d, prompt, output, rates, host, prefill_times(d, prompt, rates))

    @property
    def host_s(self) -> float:
        """The API server's time for a request, before its engine sees it and behind its first token."""
        h = self.host
        return float(h.request_s + h.server_s(self.prompt) + h.after_s(0, self.prompt))

    def step_s(self, users: float, rates: Rates, xp: Any = FLOAT) -> Any:
        """A decode step of so many sequences, in the middle of their answers."""
        return step_time_s(self.deployment.work(self._shape(users)), rates, xp)

    def binds(self, users: float) -> str:
        """What takes most of the time between two tokens of a user: prompts of the others, or a term of the decode step."""
        if (users - 1) * self.prefill[0] / self.output > float(self.step_s(users, self.rates.point)):
            return PROMPTS
        return binding_term(step_terms(self.deployment.work(self._shape(users)), self.rates.point))

    def _shape(self, users: float) -> Any:
        return decode_batch(self.deployment.model, users, self.prompt + self.output / 2.0)

    def answer_s(self, users: float) -> float:
        """R(users) at the median rates."""
        return self.host_s + max(users, 1.0) * self.prefill[0] + self.output * float(self.step_s(max(users, 1.0), self.rates.point))

    def at_once(self, users: int, think_s: float) -> float:
        """How many of these users are at once, if all of them have room."""
        low, high = 0.0, float(users)
        for _ in range(50):
            middle = 0.5 * (low + high)
            answer_s = self.answer_s(middle)
            low, high = (middle, high) if users * answer_s / (answer_s + think_s) > middle else (low, middle)
        return high

    def load(self, users: int, usd_per_s: float | None) -> Load:
        """The figures of so many users."""
        found = []
        for which in (0, 1):
            prefill, rates = np.asarray(self.prefill[which]), (self.rates.point, self.rates.draws)[which]
            step = np.asarray(self.step_s(users, rates, np if which else FLOAT))
            token = step + (users - 1) * prefill / self.output
            found.append((1.0 / token, self.host_s + prefill + self.output * token, step))
        (speed, answer, step), (speeds, answers, _) = found
        return Load(
            users,
            interval(float(speed), speeds),
            interval(float(answer), answers),
            users * self.output / float(answer),
            None if usd_per_s is None else 1e6 * usd_per_s * float(step) / users,
            self.binds(users),
        )


def serving(q: WhatIf, rates: RateDraws, host: HostRates) -> Serving:
    """The answer at an engine's `rates` and `host`. Raises UsageError for a deployment that cannot be."""
    d = q.deployment
    each = d.request_bytes(q.context, dense())[0]
    seqs = d.batch_limits()[0]
    fit = int(min(n_max(d.memory(), each), seqs))
    prompt = prompt_tokens(q.context, q.output_tokens)
    times = Times.of(d, prompt, q.output_tokens, rates, host)
    wanted, wait_s = None, 0.0
    if q.users is not None:
        wanted = max(1, round(times.at_once(q.users, q.think_s)))
        if fit and wanted > fit:
            wait_s = max(0.0, (q.users * times.answer_s(fit) / fit) - q.think_s - times.answer_s(fit))
    asked = [] if q.batches == (1,) and wanted is not None else list(q.batches)
    usd = d.gpu.price_per_hour
    usd_per_s = None if usd is None else usd * d.gpus / 3600.0
    most = max([*asked, wanted or 1])
    shown = sorted({1, *asked, *([wanted] if wanted else []), fit} - {0})
    first = [each + times.host_s for each in times.prefill]
    return Serving(
        question=q,
        ttft_s=interval(float(first[0]), first[1]),
        fit=fit,
        fit_90=(min(n_max(d.memory(0.95), each), seqs), min(n_max(d.memory(0.05), each), seqs)),
        wanted=wanted,
        loads=[times.load(users, usd_per_s) for users in shown if users <= fit],
        usd_per_mtok_in=None if usd_per_s is None else 1e6 * usd_per_s * times.prefill[0] / prompt,
        fixes=fixes(d, q.context, most, fit, _servers(times, q, most, fit)) if most > fit else [],
        wait_s=wait_s,
        rates=rates,
    )


def _servers(times: Times, q: WhatIf, most: int, fit: int) -> int:
    """The fewest such servers that have room for all users; those who think are fewer at once where they share a server with fewer."""
    low, high = 0, -(-most // max(fit, 1))
    while q.users is not None and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if times.at_once(-(-q.users // middle), q.think_s) <= fit else (middle, high)
    return high


def speeds(times: Times, users: Sequence[int]) -> list[tuple[float, float]]:
    """(tok/s of each user, output tok/s of each GPU) by users at once: a deployment's curve of speed against throughput."""
    loads = [times.load(each, None) for each in users]
    return [(load.tokens_per_s.point, load.total_tokens_per_s / times.deployment.gpus) for load in loads]
