"""A plan as a file: what was asked, the answer, and every trial: to be emitted, watched, reported, asked again and gone on with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sim.errors import UsageError
from sim.planning.answer import PlanAnswer
from sim.planning.choices import Choice
from sim.planning.race import CandidateState, RaceResult, so_far
from sim.planning.trials import Trial
from sim.slo import Condition

MARK, VERSION = "simctl_plan", 2
MOST = 1e9  # times a limit
KEYS = {MARK, "arguments", "made_by", "files", "answer", "trials"}
Trials = Mapping[str, Mapping[int, Sequence[Trial]]]


def saved(answer: PlanAnswer, arguments: Sequence[str], made_by: Mapping[str, str], files: Mapping[str, str]) -> dict[str, Any]:
    """Plain data of a plan: the `arguments` that asked it, what it was `made_by` (versions) and the digests of the `files` it read."""
    plan = answer.plan
    trials = {name: {str(n): list(map(_plain, each)) for n, each in some.items()} for name, some in trials_in(plan).items()}
    return {
        MARK: VERSION,
        "arguments": list(arguments),
        "made_by": dict(made_by),
        "files": dict(files),
        "answer": answer.to_dict(),
        "trials": trials,
    }


def trials_in(plan: RaceResult) -> Trials:
    """The trials of a plan, by the names of its choices and by count."""
    found = {
        choice.name: {count: each.trials for count, each in state.candidates.items() if each.trials}
        for choice, state in zip(plan.choices, plan.states, strict=True)
    }
    return {name: some for name, some in found.items() if some}


def checked(found: Any, name: str) -> dict[str, Any]:
    """The data of a plan file. Raises UsageError that calls the file `name` for anything else, or another version of the format."""
    if not isinstance(found, dict) or MARK not in found:
        raise UsageError(f"{name}: no plan file; `simctl plan ... -o FILE` writes one")
    if found[MARK] != VERSION:
        raise UsageError(f"{name}: a plan file of version {str(found[MARK])[:20]}, and this simctl reads version {VERSION}: plan it again")
    kinds = {"arguments": list, "made_by": dict, "files": dict, "answer": dict, "trials": dict}
    whole = found.keys() >= KEYS and all(isinstance(found[key], kind) for key, kind in kinds.items())
    if not whole or not all(isinstance(each, str) for each in found["arguments"]) or not isinstance(found["answer"].get("conclusion"), str):
        raise UsageError(f"{name}: a damaged plan file: plan it again")
    return found


def trials_of(found: Mapping[str, Any], conditions: int, name: str) -> Trials:
    """The trials of a plan file, of so many conditions each. Raises UsageError that calls the file `name`."""
    try:
        trials = {
            choice: {int(count): [_trial(each, conditions) for each in some] for count, some in counts.items()}
            for choice, counts in found["trials"].items()
        }
    except (AttributeError, LookupError, TypeError, ValueError):
        raise UsageError(f"{name}: a damaged plan file: plan it again") from None
    return trials


def primed(states: Sequence[CandidateState], choices: Sequence[Choice], trials: Trials, most: float = math.inf) -> None:
    """Have the states know these trials, as if they had just been run; but for those of more units than `most` GPUs and a stock allow."""
    for place, (choice, state) in enumerate(zip(choices, states, strict=True)):
        for count, some in sorted(trials.get(choice.name, {}).items()):
            if some and not state.why and not choice.short_of(count, most):
                state.know(place, count, some)


def known(choices: Sequence[Choice], conditions: Sequence[Condition], trials: Trials) -> RaceResult:
    """What a plan's trials say, none run."""
    states = [CandidateState() for _ in choices]
    primed(states, choices, trials)
    return so_far(choices, conditions, states, "")


def _plain(trial: Trial) -> list[Any]:
    return [
        [_number(each) for each in trial.used],
        _number(trial.user_tokens_per_s),
        _number(trial.output_tokens_per_s),
        trial.grows,
        [_number(each) for each in trial.error],
        trial.requests,
    ]


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity


def _trial(found: Any, conditions: int) -> Trial:
    used, user, output, grows, error, requests = found
    trial = Trial(tuple(map(float, used)), float(user), float(output), bool(grows), tuple(map(float, error)), int(requests))
    sane = all(0.0 <= each <= MOST or each == math.inf for each in (*trial.used, *trial.error)) and 0 <= trial.requests <= MOST
    if len(trial.used) != conditions or len(trial.error) not in (0, conditions) or not sane:
        raise ValueError
    return trial
