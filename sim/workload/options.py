"""What a loader may be told beyond the file: only files that are distributions or lack something need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`seed` of what is drawn; the window of time to draw (ServeGen); the default output (texts)."""

    seed: int = 0
    start_s: float = 0.0
    duration_s: float = 3600.0
    output_tokens: int = 256


DEFAULT = LoadOptions()
