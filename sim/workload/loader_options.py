"""Options of trace loaders: only files that are distributions or lack something need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`seed` of what is drawn; the window of time to draw (ServeGen); the default output (texts).

    `prefix_block` is what a prefix id or block hash stands for (tokens), `time_unit` what times are in ("s" or "ms"), `chars_per_token` how
    texts are counted, `assume_prefix` how many tokens prompts begin with alike where the file says nothing of what they share; None or 0:
    as the format has it.
    """

    seed: int = 0
    start_s: float = 0.0
    duration_s: float = 3600.0
    output_tokens: int = 256
    prefix_block: int | None = None
    time_unit: str | None = None
    chars_per_token: float | None = None
    assume_prefix: int = 0


DEFAULT = LoadOptions()
