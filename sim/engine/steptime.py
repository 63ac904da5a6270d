"""Step times on an integer clock, so that any way of adding them up gives the same instant.

Time is counted in ticks of 2**-50 s (0.9 fs). An iteration is priced by the one formula (sim.price) and rounded to
ticks, except that a pure decode iteration of dense attention in HBM is read off the chords of the formula: for each
batch the price is taken at mean contexts 1, 2, 4, ... and is linear in the summed context in between. The formula
stays within 1e-4 of its chords (1e-6 for plain attention; a test holds both), and the time of any number of unchanged
decode iterations becomes an integer polynomial: a simulator that jumps over them and one that takes them one by one
agree to the last tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sim.bill import DENSE, Shape, iteration_bill, mixed_shape
from sim.engine.types import Iteration
from sim.policy import AttentionPolicy
from sim.precision import Precision
from sim.price import step_time_s
from sim.rates import Rates
from sim.specs.model import ModelSpec

TICKS_PER_S = 2**50
TICK_S = 2.0**-50

Chunk = tuple[int, int, bool]
"""A prefill chunk: tokens, context at its end, whether it samples."""


class Stretch(NamedTuple):
    """Decode iterations of one batch: the first takes `first` ticks, each next `increment` more, for `most`
    iterations at most.
    """

    first: int
    increment: int
    most: int


def to_ticks(seconds: float) -> int:
    """The tick nearest to a time in seconds."""
    return round(seconds * TICKS_PER_S)


def split(iteration: Iteration) -> tuple[list[int], list[Chunk]]:
    """(contexts of the decodes, prefill chunks) of an iteration about to run.

    A request that computes one token past its prompt is a decode; any other share of the iteration is a prefill chunk.
    """
    contexts: list[int] = []
    chunks: list[Chunk] = []
    for request, tokens in iteration.scheduled:
        start = request.computed_tokens
        if tokens == 1 and start >= request.prompt_tokens:
            contexts.append(start)
        else:
            chunks.append((tokens, start + tokens, start + tokens >= request.known_tokens))
    return contexts, chunks


def micro_batches(contexts: list[int], chunks: list[Chunk], size: int) -> list[tuple[list[int], list[Chunk]]]:
    """The iteration cut into batches of at most `size` tokens: decodes first, then the chunks in order, cut where
    they must be.
    """
    parts: list[tuple[list[int], list[Chunk]]] = [(contexts[i : i + size], []) for i in range(0, len(contexts), size)]
    room = -len(contexts) % size
    for tokens, end, samples in chunks:
        left = tokens
        while left:
            if not room:
                parts.append(([], []))
                room = size
            part = min(left, room)
            left -= part
            room -= part
            parts[-1][1].append((part, end - left, samples and not left))
    return parts


class StepTime:
    """Ticks per iteration of one deployment at fixed rates (floats).

    With `micro_batch`, an iteration is computed as batches of at most that many tokens, one after the other
    (llama.cpp's n_ubatch).

    `jumps` says whether decode iterations lie on chords, so that `stretch` applies. Sliding windows, sparse policies
    and KV in host RAM make the price depend on each sequence's context or bend within a chord; such iterations are
    all priced one by one.
    """

    def __init__(
        self,
        model: ModelSpec,
        precision: Precision,
        rates: Rates,
        *,
        tp: int = 1,
        policy: AttentionPolicy = DENSE,
        micro_batch: int = 0,
    ) -> None:
        self.model = model
        self.policy = policy
        self.jumps = policy.kind == "dense" and policy.placement == "hbm" and not model.window and not micro_batch
        self._micro_batch = micro_batch
        self._precision = precision
        self._rates = rates
        self._tp = tp
        self._chords: dict[tuple[int, int], tuple[int, int]] = {}

    def iteration(self, iteration: Iteration) -> int:
        """Ticks of an iteration as decided, before its requests advance."""
        contexts, chunks = split(iteration)
        if self.jumps and not chunks:
            return self.stretch(len(contexts), sum(contexts)).first
        if self._micro_batch:
            parts = micro_batches(contexts, chunks, self._micro_batch)
            return sum(self.priced(mixed_shape(self.model, *part, self.policy)) for part in parts)
        return self.priced(mixed_shape(self.model, contexts, chunks, self.policy))

    def mixed(self, batch: int, context: int, near: int, kept: int, chunks: Iterable[Chunk]) -> int:
        """Ticks of `chunks` beside `batch` decodes of summed `context` (tokens), `near` of it in the window and
        `kept` read.
        """
        part = mixed_shape(self.model, (), chunks, self.policy)
        return self.priced(
            Shape(
                float(batch),
                float(context),
                float(near),
                float(kept),
                part.prefill_seqs,
                part.prefill_tokens,
                part.prefill_context,
                part.prefill_pairs,
                part.prefill_window_context,
                part.prefill_window_pairs,
                batch + part.sampled,
                part.has_prefill,
            )
        )

    def stretch(self, batch: int, context: int) -> Stretch:
        """The decode iterations of `batch` sequences that begin at summed `context` (at least `batch`), up to the
        chord's end.
        """
        octave = (context // batch).bit_length() - 1
        chord = self._chords.get((batch, octave))
        if chord is None:
            chord = self._chords[batch, octave] = self._chord(batch, octave)
        start, slope = chord
        from_node = context - (batch << octave)
        return Stretch(start + slope * from_node, slope * batch, -(-((batch << octave) - from_node) // batch))

    def priced(self, shape: Shape) -> int:
        """The formula, rounded to ticks."""
        bill = iteration_bill(self.model, shape, self._precision, self.policy, self._tp)
        return to_ticks(step_time_s(bill, self._rates))

    def _chord(self, batch: int, octave: int) -> tuple[int, int]:
        node = batch << octave
        low, high = (self._decode(batch, node << step) for step in (0, 1))
        return low, (high - low) // node

    def _decode(self, batch: int, context: int) -> int:
        b, c = float(batch), float(context)
        return self.priced(Shape(decode_seqs=b, decode_context=c, decode_kept=c, sampled=b))


def iterations_before(stretch: Stretch, wait: int) -> int:
    """How many iterations of the stretch begin less than `wait` ticks (above 0) after its beginning."""
    first, increment, _ = stretch
    # a real root of first*n + increment*n*(n-1)/2 = wait as a guess, then exact integers
    linear = first - increment / 2
    guess = wait / first if not increment else ((linear * linear + 2 * increment * wait) ** 0.5 - linear) / increment
    n = max(int(guess), 1)
    while n > 1 and elapsed(stretch, n - 1) >= wait:
        n -= 1
    while elapsed(stretch, n) < wait:
        n += 1
    return n


def elapsed(stretch: Stretch, n: int) -> int:
    """Ticks that the first `n` iterations of the stretch take."""
    return n * stretch.first + stretch.increment * (n * (n - 1) // 2)
