"""Types of options: texts that are parsed, and names that a shell completes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.units import parse_tokens

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # no generic before click 8.4


class Parsed(ParamType):
    """A text parsed by `read`. One for which it raises ValueError is refused: it is `wrong`, or what a UsageError says of it."""

    def __init__(self, name: str, read: Callable[[str], Any], wrong: str = "") -> None:
        self.name, self._read, self._wrong = name, read, wrong

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            self.fail(f"{self._wrong}: {value!r}", param, ctx)


class Named(ParamType):
    """A name of a catalogue, which shells complete in either case, or a file."""

    name = "text"

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name) for name in self._names() if name.casefold().startswith(incomplete.casefold())]
        return found or [CompletionItem(incomplete, type="file")]


def _gpus() -> list[str]:
    from sim.specs.gpus import list_gpus

    return list_gpus()


def _models() -> list[str]:
    from sim.specs.models import list_models

    return list_models()


def _curves() -> list[str]:
    from sim.workload.rate_curve import list_curves

    return list_curves()


def _routers() -> list[str]:
    from sim.cluster.router import ROUTERS

    return list(ROUTERS)


class RouterName(Named):
    """The name of a router, or the dotted path of a class."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sim.cluster.router import router_options

        try:
            router_options(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return value


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


def _batches(text: str) -> tuple[int, ...]:
    numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    _require(all(1 <= n <= 4096 for n in numbers))
    return numbers


def _fraction(text: str) -> float:
    number = float(text)
    _require(0 < number < 1)
    return number


def _share(text: str) -> float:
    return 1.0 if float(text) == 1 else _fraction(text)


def _batch_cap(text: str) -> int | float:
    kind, _, tau = text.rpartition(":")
    if kind == "knee":
        return _fraction(tau)
    number = int(text)
    _require(1 <= number <= 1_000_000)
    return number


def _attention(text: str) -> tuple[str, int]:
    kind, colon, k = text.partition(":")
    if kind in ("dense", "sink-window") and not colon:
        return kind, 0
    _require(kind in ("pages", "blocks") and k.isdecimal() and 1 <= int(k) <= 4096)
    return kind, int(k)


def _seconds(text: str) -> float:
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text.strip()[-1:], 0.0)
    seconds = float(text.strip()[:-1]) * unit if unit else float(text)
    _require(0 < seconds < math.inf)
    return seconds


def _pause(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0s") else _seconds(text)


def _goal(text: str) -> tuple[str, float]:
    if ":" in text:
        from sim.slo import limit_of

        return limit_of(text)
    metric, _, limit = text.partition("<=")
    _require(re.fullmatch(r"\s*[\w.]+\s*", metric) is not None and not math.isnan(float(limit)))
    return metric.strip(), float(limit)


def _pair(text: str) -> tuple[float, float]:
    first, _, second = text.partition(":")
    return float(first), float(second)


TOKENS = Parsed("tokens", parse_tokens)
PREFIX = Parsed("tokens", lambda text: 0 if text.strip() == "0" else parse_tokens(text))
LENGTH = Parsed("tokens|auto", lambda text: text if text == "auto" else parse_tokens(text))
BATCHES = Parsed("n[,n...]", _batches, "not whole numbers from 1 to 4096 with commas between them")
FRACTION = Parsed("fraction", _fraction, "not a fraction between 0 and 1")
SHARE = Parsed("fraction", _share, "not a fraction between 0 and 1")  # all of it is one, too
BATCH_CAP = Parsed("n|knee:tau", _batch_cap, "neither a batch from 1 up nor knee:TAU with TAU between 0 and 1")  # a knee as a float
ATTENTION = Parsed("policy", _attention, "none of dense, sink-window, pages:K and blocks:K with K from 1 to 4096")
DURATION = Parsed("time", _seconds, "not a time (examples: 90, 120s, 2m)")
PAUSE = Parsed("time", _pause, "not a time (examples: 0, 5, 30s, 2m)")
GOAL = Parsed("metric<=x", _goal, "needs METRIC<=NUMBER or a condition, for example 'p99_ttft_ms<=2000' or 'ttft:p99<2s'")
GPU, MODEL, CURVE, ROUTER = Named(_gpus), Named(_models), Named(_curves), RouterName(_routers)
PAIR = Parsed("rate:burst", _pair, "not RATE:BURST")
