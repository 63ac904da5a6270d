"""Evidence behind rates, in words for a first reader."""

from __future__ import annotations

from sim.rates.provenance import Origin, Provenance

ELSEWHERE = {
    Origin.POPULATION: "was not measured here; rates from its datasheet, published numbers and other GPUs",
    Origin.PRIOR: "was not measured here; rates from its datasheet",
}


def grounds(gpu: str, source: Provenance) -> str:
    """Evidence on a GPU, as the beginning of a sentence."""
    measured = f"was measured here with {source.engines[0]}" if source.engines else "has rates as given"
    return f"{gpu} {ELSEWHERE.get(source.origin, measured)}"
