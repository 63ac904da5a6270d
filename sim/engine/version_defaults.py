"""Defaults of a version of vLLM, and how far its iterations were measured."""

from __future__ import annotations

from sim.engine.versions import NEWEST, rules_of

ASYNCHRONOUS = (0, 14)  # the first that decides ahead by default
SHARE = (0, 20), 0.9  # before it, this share of device memory; from it, the engine's
# Served runs of 0.20.2, 0.23.0 and 0.24.0 differ as replicates do; what is older was measured in none.
MEASURED = (0, 20)
# The first that is known to draft by a model while it decides ahead, and from whole graphs. 0.23.0 does neither: it replays a draft
# model's passes in pieces, and launches what lies between them layer by layer.
DRAFTS_AHEAD = (0, 32)
# V1 replayed decodes in pieces of a graph, attention launched between them, until 0.11 captured whole ones; V0 had captured whole ones.
PIECES = (0, 8), (0, 11)
# V1's sampler sorted the logits of all sequences until then: with their places, odds and sums, copies of them in all. Two public starts of
# one model (0.10.2 and 0.11) say nine; V0's are as those learnt.
SORTS, SORTED_COPIES = ((0, 8), (0, 17)), 9.0
# Log sd of step times, and of launches outside captured graphs, of a version that was not measured: declared.
STEP_SD, LAUNCH_SD = 0.08, 0.4
# The newest that was measured: kernels of 0.26 take what those of 0.23 take, and launching a mixed iteration half as long again. What is
# newer is declared to lie that far from it.
NEWEST_MEASURED, NEWER_STEP_SD, NEWER_LAUNCH_SD = (0, 26), 0.02, 0.2


def numbers(version: str) -> tuple[int, int]:
    """(major, minor). Raises UsageError for what is no version."""
    rules_of(version)
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def schedules_ahead(version: str) -> bool:
    """Whether the version decides an iteration while the one before runs, unasked."""
    return numbers(version) >= ASYNCHRONOUS


def drafts_in_pieces(drafter: str, version: str) -> bool:
    """Whether what drafts is a model that the version runs in pieces of graphs, each iteration decided after the one before."""
    return drafter == "draft_model" and numbers(version) < DRAFTS_AHEAD


def decodes_in_pieces(version: str) -> bool:
    """Whether the version replays iterations that only decode in pieces of graphs, unasked."""
    return PIECES[0] <= numbers(version) < PIECES[1]


def default_share(version: str, otherwise: float) -> float:
    """Share of device memory that the version takes, unasked."""
    return SHARE[1] if numbers(version) < SHARE[0] else otherwise


def logit_copies(version: str) -> float | None:
    """Copies of the logits that a sampler of the version keeps where it sorts them; None where they are learnt from starts."""
    return SORTED_COPIES if SORTS[0] <= numbers(version) < SORTS[1] else None


def measured(version: str) -> bool:
    """Whether iterations of this version, or of its neighbours, were measured. The newest that is known is the default: whoever does not
    say a version is answered by those measured.
    """
    return MEASURED <= numbers(version) <= NEWEST_MEASURED or version == NEWEST


def unmeasured_sds(version: str) -> tuple[float, float]:
    """Log sds of step times and of launches of a version that was not measured; zeros of one that was."""
    if measured(version):
        return 0.0, 0.0
    return (STEP_SD, LAUNCH_SD) if numbers(version) < MEASURED else (NEWER_STEP_SD, NEWER_LAUNCH_SD)
