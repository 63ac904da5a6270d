"""vLLM's prefill interval: prompts wait for some iterations, so that decodes run in longer stretches (`prefill_schedule_interval`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PrefillInterval:
    """Prefill in one of `least` iterations only; in each, if the last one that let prefill in left somebody waiting."""

    least: int = 1
    holds: bool = False  # whether the decision being made lets no prefill in
    _executed: int = 0  # iterations with work
    _latest: int = 0  # the last of them that carried prefill; a whole interval before the first
    _backed_up: bool = False

    def __post_init__(self) -> None:
        self._latest = -self.least

    def decide(self, decodes: bool) -> None:
        """A decision begins; `decodes`: whether somebody running has its prompt computed."""
        self.holds = not self._backed_up and self._executed + 1 - self._latest < self.least and decodes

    def decided(self, works: bool, prefills: bool, waits: bool | None) -> None:
        """It was made: with work, with prefill, and whether somebody was left waiting (None: nobody was to be admitted)."""
        if waits is not None and not self.holds:
            self._backed_up = waits
        self._executed += works
        if prefills:
            self._latest = self._executed
