"""Prompts that came in alone beside streams that decode: where token times show what one iteration did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrate.served.runs import Experiment

ALONE_S = 0.07  # from any other first token: of two prompts close together, who held up whom cannot be told


def joins(experiment: Experiment, before: int, after: int = 0) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(prompt, [(stream, token)]) of each prompt that came in alone: its place among the requests, and of every stream that decoded
    meanwhile its place and its token nearest to the prompt's first, where it has `before` tokens before that and `after` after it.

    Nothing without token times; prompts beside which no such stream decoded are left out.
    """
    times = experiment.token_s or ()
    first = np.array([t[0] if len(t) else np.nan for t in times])
    for i in range(len(times)):
        apart = np.abs(np.delete(first, i) - first[i])
        if not np.isfinite(first[i]) or (apart.size and np.nanmin(apart) < ALONE_S):
            continue
        beside = []
        for j, t in enumerate(times):
            if j != i and len(t) and t[0] < first[i] <= t[-1]:
                k = int(np.argmin(np.abs(t - first[i])))
                if k >= before and k + after < len(t):
                    beside.append((j, k))
        if beside:
            yield i, beside
