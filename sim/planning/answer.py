"""The whole answer of a plan: the race, what more money buys, the highest rate, the binding term, and what to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sim.planning.day import Hour
from sim.planning.emit import emitted
from sim.planning.front import Point
from sim.planning.growth import Year
from sim.planning.highest_rate import Sustained
from sim.planning.race import Candidate, RaceResult
from sim.planning.value import Measurement
from sim.planning.words import conclusion
from sim.results.chance import Chance
from sim.results.power import Power
from sim.results.token_cost import TokenCost
from sim.shown import Figures, Shown
from sim.specs.api_prices import api_price
from sim.study.simulate import scope_of


@dataclass(slots=True, repr=False)
class PlanAnswer(Shown):
    """A race's result and what is known around its winner; `ended` says what ended it early, if something did."""

    plan: RaceResult
    ended: str = ""
    quick: bool = False
    front: list[Point] = field(default_factory=list)
    sustained: Sustained | None = None
    terms: dict[str, float] = field(default_factory=dict)
    power: Power | None = None  # of the winner without what stands by
    tokens: TokenCost | None = None  # of the winner, with what stands by
    measurement: Measurement | None = None
    reasons: list[str] = field(default_factory=list)
    day: list[Hour] = field(default_factory=list)
    year: Year | None = None
    skipped: dict[str, str] = field(default_factory=dict)  # combinations that there cannot be, and why

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return self.conclusion, [("trials", str(sum(len(each.trials) for each in self.plan.candidates())))]

    @property
    def finished(self) -> bool:
        """Whether all was looked at."""
        return not self.ended

    @property
    def conclusion(self) -> str:
        """The answer in words."""
        return conclusion(self.plan).removeprefix("=> ")

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the winner, every choice and what was tried of it, and what is around the winner."""
        return as_dict(self)

    def emitted(self, kind: str) -> str:
        """Launch file of the winner, as `kind` of sim.planning.emit, the answer above it as comments."""
        return emitted(self.plan, kind, self.conclusion)


def _around(answer: PlanAnswer, front: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is around a winner; `front` are the candidates of the front, as data."""
    api = api_price(_question_of(answer.plan)["model"])
    return {
        "front": [{**_figures(point), **candidate} for point, candidate in zip(answer.front, front, strict=True)],
        "sustained_requests_per_s": asdict(answer.sustained) if answer.sustained else None,
        "cost_shares": answer.terms,
        "power": asdict(answer.power) if answer.power else None,
        "usd_per_mtok": answer.tokens.to_dict() if answer.tokens else None,
        "api_usd_per_mtok": asdict(api) if api else None,
        "measurement": asdict(answer.measurement) if answer.measurement else None,
        "reasons": answer.reasons,
    }


def as_dict(answer: PlanAnswer) -> dict[str, Any]:
    """Plain data: the winner, every choice and what was tried of it, and what is around the winner."""
    plan = answer.plan
    so_far = plan.best if plan.ended and not plan.winner else None

    def one(candidate: Candidate) -> dict[str, Any]:
        texts = [condition.text for condition in plan.conditions]
        return {
            "choice": plan.choices[candidate.choice].name,
            "replicas": candidate.replicas,
            "stand_by": plan.choices[candidate.choice].spares(candidate.replicas),
            "gpus": plan.choices[candidate.choice].gpus_of(candidate.replicas),
            "nodes": plan.choices[candidate.choice].nodes_of(candidate.replicas),
            "usd_per_hour": plan.cost(candidate),
            "power_limit_kw": plan.choices[candidate.choice].kw_of(candidate.replicas) or None,
            **_chance(candidate.chance),
            "limit_used": dict(zip(texts, candidate.used, strict=True)),
            "missed_share": dict(zip(texts, candidate.missed, strict=True)),
            "binding": texts[candidate.binding],
        }

    return {
        "slo": [condition.text for condition in plan.conditions],
        **_question_of(plan),
        "finished": answer.finished,
        "lasts": plan.lasts or None,
        "winner": {**one(plan.winner), "replicas_at_least": plan.fewest(plan.winner).replicas} if plan.winner else None,
        "so_far": {**one(so_far), "replicas_at_least": plan.at_least(so_far)} if so_far else None,
        "undecided": [one(each) for each in plan.undecided()],
        "nearest": one(nearest) if (nearest := plan.nearest()) and not plan.winner else None,
        **({} if answer.quick or not plan.winner else _around(answer, [one(point.candidate) for point in answer.front])),
        **({"day": [asdict(hour) for hour in answer.day]} if answer.day else {}),
        **({"year": asdict(answer.year)} if answer.year else {}),
        "skipped": answer.skipped,
        "choices": [
            {
                "choice": choice.name,
                "usd_per_hour_each": choice.cost(1),
                "out": state.why or None,
                "same_as": None if state.same_as is None else plan.choices[state.same_as].name,
                "replicas_at_least": state.fails + 1 if state.open else None,
                "tried": [one(each) for _, each in sorted(state.candidates.items()) if each.trials],
            }
            for choice, state in zip(plan.choices, plan.states, strict=True)
        ],
    }


def _question_of(plan: RaceResult) -> dict[str, Any]:
    """Question, answer in words, and its measured part; of the winner, or of the first choice where there is none."""
    win = plan.winner
    study = plan.choices[win.choice].study_of(win.replicas) if win else plan.choices[0].study
    return {
        "model": study.deployment.model.name,
        "workload": dict(study.workload.origin),
        "conclusion": conclusion(plan).removeprefix("=> "),
        "rates": study.rates.summary,
        "scope": scope_of(study),
    }


def _figures(point: Point) -> dict[str, float]:
    return {
        "user_tokens_per_s": point.user_tokens_per_s,
        "gpu_tokens_per_s": point.gpu_tokens_per_s,
        "usd_per_million_tokens": point.usd_per_mtok,
    }


def _chance(chance: Chance) -> dict[str, Any]:
    return {
        "chance": chance.value,
        "chance_low": chance.low,
        "chance_high": chance.high,
        "trials": chance.trials,
        "certain": chance.certain,
    }
