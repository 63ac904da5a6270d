"""A watched load as a trace: arrivals window by window in JSON lines, in files of bounded size."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

ROTATES_AT_BYTES = 64 << 20  # the file so far then becomes FILE.1, and the one before it goes
MOST_PER_S = 5_000.0  # requests a server could have taken: more is a counter that jumped


class LoadTrace:
    """Arrivals at `path`, or nowhere. Raises OSError where the disk takes no more."""

    def __init__(self, path: Path | None, rotates_at_bytes: int = ROTATES_AT_BYTES) -> None:
        self._path, self._limit = path, rotates_at_bytes
        if path is not None:
            path.write_text("", encoding="utf-8")

    def add(self, begin_s: float, seconds: float, count: float, prompt_tokens: float, output_tokens: float, servers: int) -> str:
        """Append a window's arrivals, evenly over it, with mean lengths: metrics say no more. Returns why there are none, or nothing."""
        if self._path is None or math.isnan(prompt_tokens):
            return ""
        if count > MOST_PER_S * seconds * servers:
            return f"{count:.3g} requests in {seconds:.3g} s: a counter jumped; they are not in the trace"
        lengths = {"prompt_tokens": max(1, round(prompt_tokens)), "output_tokens": max(1, round(output_tokens))}
        times = (begin_s + seconds * (i + 0.5) / count for i in range(round(count)))
        text = "".join(json.dumps({"arrival_s": round(each, 4)} | lengths) + "\n" for each in times)
        if self._path.stat().st_size + len(text) > self._limit:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
        return ""
