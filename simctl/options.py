"""Options and checks that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.units import parse_tokens


class TokenCount(click.ParamType):
    """A token count with a binary suffix: 8192, 128K, 1M."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_tokens(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class IntList(click.ParamType):
    """Comma-separated whole numbers from 1 up: 1,2,4,8."""

    name = "n[,n...]"

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            self.fail(f"not a list of whole numbers: {value!r}", param, ctx)
        if not all(1 <= n <= self.maximum for n in numbers):
            self.fail(f"out of range 1..{self.maximum}: {value!r}", param, ctx)
        return numbers


class Fraction(click.ParamType):
    """A number strictly between 0 and 1 (or up to 1 where `closed`)."""

    name = "fraction"

    def __init__(self, closed: bool = False) -> None:
        self.closed = closed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (0 < number < 1 or (self.closed and number == 1)):
            self.fail(f"not a fraction between 0 and 1: {value!r}", param, ctx)
        return number


class BatchCap(click.ParamType):
    """A batch cap: a whole number, or `knee:0.65` for the largest batch that keeps this per-request efficiency (returned as a float)."""

    name = "n|knee:tau"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        if isinstance(value, int | float):
            return value
        kind, _, tau = str(value).rpartition(":")
        try:
            number = float(tau) if kind == "knee" else int(value)
        except ValueError:
            number = 0
        if not (0 < number < 1 if kind == "knee" else 1 <= number <= 1_000_000):
            self.fail(f"neither a batch from 1 up nor knee:TAU with TAU between 0 and 1: {value!r}", param, ctx)
        return number


class Attention(click.ParamType):
    """An attention policy: dense, sink-window, pages:K or blocks:K (K blocks' worth of 128 tokens). Returned as (kind, K)."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        kind, colon, k = str(value).partition(":")
        if kind in ("dense", "sink-window") and not colon:
            return kind, 0
        if kind not in ("pages", "blocks") or not k.isdecimal() or not 1 <= int(k) <= 4096:
            self.fail(f"none of dense, sink-window, pages:K and blocks:K with K from 1 to 4096: {value!r}", param, ctx)
        return kind, int(k)


class Duration(click.ParamType):
    """Seconds, or a number with a unit: 90, 120s, 2m, 1h. Returned in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"not a time: {value!r} (examples: 90, 120s, 2m)", param, ctx)
        return seconds


class Pair(click.ParamType):
    """Two numbers with a colon between them: RATE:BURST."""

    name = "rate:burst"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        first, _, second = str(value).partition(":")
        try:
            return float(first), float(second)
        except ValueError:
            self.fail(f"not RATE:BURST: {value!r}", param, ctx)


def deployment_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--model --gpu --dtype --kv-dtype --tp, with the same meaning everywhere."""
    for option in reversed(
        [
            click.option("--model", default="Qwen2.5-7B-1M", show_default=True, help="Catalogue name, or a Hugging Face config.json."),
            click.option("--gpu", required=True, help="Catalogue name (see `simctl gpus`), or a YAML file that describes one."),
            click.option("--dtype", default="bf16", show_default=True, help="Weight dtype: bf16, fp16, fp8, int8, int4, nvfp4, mxfp4."),
            click.option("--kv-dtype", default="bf16", show_default=True, help="KV-cache dtype: bf16, fp16, fp8, int8."),
            click.option(
                "--tp", "--tensor-parallel-size", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica."
            ),
        ]
    ):
        function = option(function)
    return function


def writable(path: str | None) -> Path | None:
    """The path, checked before any work is done: its folder must exist and take files. UsageError otherwise."""
    if path is None:
        return None
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: {folder} is not a folder")
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    try:
        probe = folder / f".{target.name}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return target
