"""A trace: calls in columns, checked one by one as they are added, so that an error names the line it came from."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.shown import Figures, Shown
from sim.units import MAX_TOKENS
from sim.workload.content import Content, SystemPrompt

OPTIONAL = (
    "priorities",
    "cancel_s",
    "tenants",
    "models",
    "adapters",
    "images",
    "after",
    "recorded_s",
)  # columns that are empty where no call has any
MAX_TIME_S = 1e10  # some three centuries: beyond it, an arrival is a unit mistake
UNIX_S = 1e9  # a trace whose first call comes later than this, 31 years, has Unix times (of 2001 and later)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace(Shown):
    """Calls in order of arrival; every column has shape [calls].

    `arrival_s` counts from the start of the trace; it is NaN for a call that follows others, `think_s` after the last of them has
    finished: the previous turn of its session, and the calls of `after`. `contents` says what the prompt shares with others (None:
    nothing).
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    think_s: NDArray[np.float64]
    request_ids: Sequence[str]
    session_ids: Sequence[str | None]
    turns: Sequence[int]
    contents: Sequence[Content | None]
    notes: tuple[str, ...] = ()  # what the loader skipped or estimated, in words
    priorities: Sequence[int] = ()  # lower comes first; empty: all 0
    cancel_s: Sequence[float] = ()  # how long after a call's arrival its client gives up; empty: none does
    tenants: Sequence[str] = ()  # who a call is for, where the front door keeps shares; empty: all one
    models: Sequence[str] = ()  # which model a call is for, in a fleet of several; empty: any
    adapters: Sequence[str] = ()  # which LoRA adapter a call asks for; empty: none does
    images: Sequence[int] = ()  # of a call's prompt, whose tokens count among its own; empty: none has any
    after: Sequence[tuple[str, ...]] = ()  # ids of the calls that a call waits for, beside its session's previous turn; empty: none do
    recorded_s: Sequence[float] = ()  # when a call that follows others came in the recording; NaN: not known; empty: of none

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        rate = self.offered_rate_per_s if len(self) else None
        tokens = [(name, f"{column.mean():.4g}") for name, column in (("in", self.prompt_tokens), ("out", self.output_tokens)) if len(self)]
        return f"{len(self):,} requests", [*tokens, *([] if rate is None else [("requests/s", f"{rate:.4g}")])]

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def timed(self) -> bool:
        """Whether the calls carry their own arrival times (a prompt file has none: all start at 0)."""
        return len(self) < 2 or bool(np.nanmax(self.arrival_s) > 0.0)

    @property
    def offered_rate_per_s(self) -> float | None:
        """Calls per second over the span of their arrivals; None when some wait for others or all arrive at once."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return len(self) / span if span > 0.0 else None

    def taken(self, order: NDArray[np.int64]) -> Trace:
        """The calls at these rows, in this order."""
        rows = order.tolist()
        return Trace(
            self.arrival_s[order],
            self.prompt_tokens[order],
            self.output_tokens[order],
            self.think_s[order],
            [self.request_ids[i] for i in rows],
            [self.session_ids[i] for i in rows],
            [self.turns[i] for i in rows],
            [self.contents[i] for i in rows],
            self.notes,
            **{name: [column[i] for i in rows] for name in OPTIONAL if (column := getattr(self, name))},
        )

    def head(self, count: int) -> Trace:
        """The first `count` calls."""
        return self.taken(np.arange(min(count, len(self))))

    def retimed(self, arrival_s: NDArray[np.float64]) -> Trace:
        """The same calls at other arrival times (NaN where a call follows its session's previous turn).

        Raises UsageError for times beyond MAX_TIME_S.
        """
        latest = float(np.nanmax(arrival_s, initial=0.0))
        if latest > MAX_TIME_S:
            raise UsageError(f"arrivals would reach {latest:g} s: the rate is too low")
        return replace(self, arrival_s=arrival_s)

    def replayed(self, how: str | None) -> Trace:
        """The calls as one of formats.REPLAYS: `open`, each at its recorded time, whatever the answers take; `closed`, turns of a session
        each after the answer to the one before (None: as the format has it). UsageError where a call's time was not recorded.
        """
        if how == "closed":
            later = [turn > 0 and session is not None for turn, session in zip(self.turns, self.session_ids, strict=True)]
            return replace(self, arrival_s=np.where(later, math.nan, self.arrival_s))
        if how is None or not np.isnan(self.arrival_s).any():
            return self
        known = np.array(self.recorded_s or [math.nan] * len(self))
        times = np.where(np.isnan(self.arrival_s), known, self.arrival_s)
        if np.isnan(times).any():
            name = self.request_ids[int(np.flatnonzero(np.isnan(times))[0])]
            raise UsageError(f"call {name!r} has no recorded time of its own: it follows an answer, and cannot be replayed open")
        return replace(self, arrival_s=times, think_s=np.zeros(len(self)), after=()).taken(np.argsort(times, kind="stable"))

    def rate_scaled(self, factor: float) -> Trace:
        """The same calls arriving `factor` times as fast; think times stay. Raises UsageError unless 0 < factor <
        infinity.
        """
        if not (0.0 < factor < math.inf):
            raise UsageError(f"rate scale must be a positive number, got {factor:g}")
        return self.retimed(self.arrival_s / factor)


def assuming_prefix(trace: Trace, tokens: int) -> Trace:
    """The trace with prompts that share nothing taken to begin with the same `tokens` tokens, as a benchmark's shared prefix does."""
    if not tokens:
        return trace
    contents = [
        SystemPrompt("assumed", min(tokens, int(prompt))) if content is None and not turn else content
        for content, prompt, turn in zip(trace.contents, trace.prompt_tokens, trace.turns, strict=True)
    ]
    return replace(trace, contents=contents)


@dataclass(slots=True)
class TraceBuilder:
    """Collects calls and refuses what no engine could be asked. `name` and `where` (a line, an item) name the culprit
    in errors.
    """

    name: str
    _arrival: array[float] = field(default_factory=lambda: array("d"))
    _prompt: array[int] = field(default_factory=lambda: array("q"))
    _output: array[int] = field(default_factory=lambda: array("q"))
    _think: array[float] = field(default_factory=lambda: array("d"))
    _ids: list[str] = field(default_factory=list)
    _sessions: list[str | None] = field(default_factory=list)
    _turns: array[int] = field(default_factory=lambda: array("q"))
    _contents: list[Content | None] = field(default_factory=list)
    _priorities: list[int] = field(default_factory=list)
    _cancel: list[float] = field(default_factory=list)
    _tenants: list[str] = field(default_factory=list)
    _models: list[str] = field(default_factory=list)
    _adapters: list[str] = field(default_factory=list)
    _images: list[int] = field(default_factory=list)
    _after: list[tuple[str, ...]] = field(default_factory=list)
    _recorded: array[float] = field(default_factory=lambda: array("d"))
    _notes: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _last_turn: dict[str, int] = field(default_factory=dict)
    _last_s: float = 0.0

    def __len__(self) -> int:
        return len(self._arrival)

    def note(self, text: str) -> None:
        self._notes.append(text)

    def error(self, where: str, what: str) -> UsageError:
        return UsageError(f"{self.name}: {where}: {what}")

    def add(
        self,
        where: str,
        *,
        arrival_s: float | None,
        prompt_tokens: int,
        output_tokens: int,
        request_id: str | None = None,
        session_id: str | None = None,
        turn: int | None = None,
        think_s: float = 0.0,
        content: Content | None = None,
        priority: int = 0,
        cancel_s: float = math.inf,
        tenant: str = "",
        model: str = "",
        adapter: str = "",
        images: int = 0,
        after: tuple[str, ...] = (),
        recorded_s: float = math.nan,
    ) -> None:
        """Append one call. `arrival_s` None means: after the session's previous turn, and after the earlier calls named. Raises
        UsageError naming `where`.
        """
        if after:
            self._check_after(where, arrival_s, after)
        arrival_s = self._arrival_of(where, arrival_s, bool(after) or (session_id is not None and session_id in self._last_turn))
        self._check_sizes(where, prompt_tokens, output_tokens, images)
        self._check_waits(where, think_s, cancel_s)
        self._check_texts(where, request_id=request_id, session_id=session_id, tenant=tenant, model=model, adapter=adapter)
        request_id, turn = self._new_id(where, request_id), self._turn_of(where, session_id, turn)
        self._arrival.append(arrival_s)
        self._prompt.append(prompt_tokens)
        self._output.append(output_tokens)
        self._think.append(think_s)
        self._ids.append(request_id)
        self._sessions.append(session_id)
        self._turns.append(turn)
        self._contents.append(content)
        self._priorities.append(priority)
        self._cancel.append(cancel_s)
        self._tenants.append(tenant)
        self._models.append(model)
        self._adapters.append(adapter)
        self._images.append(images)
        self._after.append(after)
        self._recorded.append(recorded_s)

    def _check_after(self, where: str, arrival_s: float | None, after: tuple[str, ...]) -> None:
        if unknown := [name for name in after if name not in self._seen]:
            raise self.error(where, f"after names {unknown[0]!r}, which is no earlier call")
        if arrival_s is not None:
            raise self.error(where, "arrival_s and after exclude each other")

    def _arrival_of(self, where: str, arrival_s: float | None, follows: bool) -> float:
        """The arrival, checked and noted as the latest; NaN of a call that `follows` others."""
        if arrival_s is None:
            if not follows:
                raise self.error(where, "a call without arrival_s must follow an earlier turn of its session, or calls named by after")
            return math.nan
        if MAX_TIME_S < arrival_s < UNIX_S * 1e4:
            raise self.error(where, f"arrival {arrival_s!r} s lies centuries ahead: Unix times are seconds here, not milliseconds")
        if not 0.0 <= arrival_s <= MAX_TIME_S:
            raise self.error(where, f"arrival must be a finite time >= 0, got {arrival_s!r} s")
        if arrival_s < self._last_s:
            raise self.error(where, f"arrivals out of order: {arrival_s!r} s comes after {self._last_s!r} s")
        self._last_s = arrival_s
        return arrival_s

    def _check_sizes(self, where: str, prompt_tokens: int, output_tokens: int, images: int) -> None:
        if not 1 <= prompt_tokens <= MAX_TOKENS:
            raise self.error(where, f"prompt must have 1..2**32 tokens, got {prompt_tokens}")
        if not 1 <= output_tokens <= MAX_TOKENS:
            raise self.error(where, f"output must have 1..2**32 tokens, got {output_tokens}")
        if not 0 <= images <= prompt_tokens:
            raise self.error(where, f"images are 0 to the prompt's {prompt_tokens} tokens, got {images}")

    def _check_waits(self, where: str, think_s: float, cancel_s: float) -> None:
        if not 0.0 <= think_s <= MAX_TIME_S:
            raise self.error(where, f"think time must be a finite time >= 0, got {think_s!r} s")
        if not (0.0 < cancel_s <= MAX_TIME_S or cancel_s == math.inf):
            raise self.error(where, f"a client gives up after a finite time above 0, got cancel_s {cancel_s!r} s")

    def _check_texts(self, where: str, **texts: str | None) -> None:
        for label, name in texts.items():
            if name and ("\0" in name or (not name.isascii() and any("\ud800" <= each <= "\udfff" for each in name))):
                raise self.error(where, f"{label} holds a NUL or half a surrogate pair, which no file can keep: {name[:40]!a}")

    def _new_id(self, where: str, request_id: str | None) -> str:
        request_id = str(len(self)) if request_id is None else request_id
        if request_id in self._seen:
            raise self.error(where, f"duplicate request id {request_id!r}")
        self._seen.add(request_id)
        return request_id

    def _turn_of(self, where: str, session_id: str | None, turn: int | None) -> int:
        if session_id is None:
            if turn:
                raise self.error(where, "a turn needs a session_id")
            return 0
        expected = self._last_turn.get(session_id, -1) + 1
        if turn not in (None, expected):
            raise self.error(where, f"session {session_id!r}: expected turn {expected}, got {turn}")
        self._last_turn[session_id] = expected
        return expected

    def build(self) -> Trace:
        """The trace; Unix times become seconds since the first call. Raises UsageError when it is empty."""
        if not len(self):
            raise UsageError(f"{self.name}: holds no requests")
        arrival_s = np.frombuffer(self._arrival, dtype=np.float64)
        if arrival_s[0] >= UNIX_S:
            arrival_s = arrival_s - arrival_s[0]
        return Trace(
            arrival_s,
            np.frombuffer(self._prompt, dtype=np.int64),
            np.frombuffer(self._output, dtype=np.int64),
            np.frombuffer(self._think, dtype=np.float64),
            self._ids,
            self._sessions,
            self._turns,
            self._contents,
            tuple(self._notes),
            self._priorities if any(self._priorities) else (),
            self._cancel if min(self._cancel) < math.inf else (),
            self._tenants if any(self._tenants) else (),
            self._models if any(self._models) else (),
            self._adapters if any(self._adapters) else (),
            self._images if any(self._images) else (),
            self._after if any(self._after) else (),
            () if all(map(math.isnan, self._recorded)) else self._recorded,
        )
