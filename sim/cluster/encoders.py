"""Encoder pool: a stage before prefill that takes a fixed time an image, first come, first served."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapreplace

from sim.errors import UsageError
from sim.ticks import to_ticks


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """`replicas` encoders, each with one request at a time, `image_s` seconds an image. What their GPUs cost is not counted."""

    replicas: int
    image_s: float

    def __post_init__(self) -> None:
        if not (self.replicas >= 1 and 0.0 <= self.image_s < math.inf):
            raise UsageError("encoders need at least one replica, and a time an image that is not negative")


class Encoders:
    """The encoders of a run."""

    def __init__(self, spec: EncoderSpec) -> None:
        self._image_s = spec.image_s
        self._free = [0] * spec.replicas  # a heap of when each is, in ticks

    def done(self, images: int, now: int) -> int:
        """When the images that come now are encoded, in ticks."""
        end = max(now, self._free[0]) + to_ticks(images * self._image_s)
        heapreplace(self._free, end)
        return end
