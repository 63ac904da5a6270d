"""Step times on the integer clock (sim.engine.ticks).

An iteration is priced by the one formula (sim.price) and rounded to ticks, except that a pure decode iteration of dense
attention in HBM is read off the chords of the formula: for each batch the price is taken at mean contexts 1, 2, 4, ...
and is linear in the summed context in between. The formula stays within 1e-4 of its chords (1e-6 for plain attention; a
test holds both), and the time of any number of unchanged decode iterations becomes an integer polynomial: a simulator
that jumps over them and one that takes them one by one agree to the last tick.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import sqrt

from sim.bill import (
    DENSE,
    GRAPH_TOKENS,
    Bill,
    Shape,
    bill_from,
    captured_padding,
    coefficients,
    doublings,
    mixed_shape,
    spread,
)
from sim.dealing import SHARES, node, one_octave_on, share_place
from sim.engine.boost import NO_BOOST, Boost
from sim.engine.microbatch import Chunk, equal_micro_batches, micro_batches
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.prefill_fetch import prefill_read_where_it_lives
from sim.engine.ticks import Stretch, to_ticks
from sim.engine.tiers import Tier
from sim.engine.types import Iteration
from sim.policy import AttentionPolicy
from sim.precision import Precision
from sim.price import step_time_s
from sim.rates import Rates
from sim.specs.model import ModelSpec
from sim.turns import idle_share, query_heads


def split(iteration: Iteration) -> tuple[list[int], list[Chunk]]:
    """(contexts of the decodes, chunks) of an iteration about to run.

    A request that computes one token past its prompt is a decode; any other share of the iteration is a chunk. A
    prefill chunk samples at most its last token; one that goes past the request's known tokens verifies drafts, and
    all its rows are sampled.
    """
    contexts: list[int] = []
    chunks: list[Chunk] = []
    for request, tokens in iteration.scheduled:
        start = request.computed_tokens
        beyond = start + tokens - request.known_tokens
        if beyond > 0:
            chunks.append((tokens, start + tokens, beyond + 1))
        elif tokens == 1 and start >= request.prompt_tokens:
            contexts.append(start)
        else:
            chunks.append((tokens, start + tokens, int(beyond == 0)))
    return contexts, chunks


def shape_of(model: ModelSpec, contexts: Iterable[int], chunks: Sequence[Chunk], policy: AttentionPolicy, tp: int = 1) -> Shape:
    """The sums the bill needs; verifying drafts is not prefill."""
    shape = mixed_shape(model, contexts, chunks, policy, tp)  # type: ignore[arg-type]  # rows may exceed one
    if chunks and chunks[0][2] > 1 and all(n == rows > 1 for n, _, rows in chunks):
        return replace(shape, has_prefill=0.0)
    return shape


# Ticks of decode iterations of one batch and mean context, their standard deviation at SHARES of it.
_Node = tuple[int, ...]


class StepTime:
    """Ticks per iteration of one deployment at fixed rates (floats).

    With `micro_batch`, an iteration is computed as batches of at most that many tokens, one after the other
    (llama.cpp's n_ubatch), of equal share for every request where the model keeps recurrent state; their size is
    their own. With `streams`, requests keep a KV stream each, and batches are of equal share and consecutive slots.
    Otherwise iterations run the graph captured for the next size up: their linear layers compute that many rows,
    and one beyond the largest runs unpadded. `capture_sizes` are those of an engine that captures decode batches
    only, and launches larger ones kernel by kernel; without them they are vLLM's. An iteration that verifies drafts
    costs `verify_s` more (a draft head), and as many decode steps of the model of `draft` as it verifies drafts per
    request; without `graph_reuse` no captured graph holds it, and all its kernels are launched one by one. KV blocks
    brought back from `tiers` cost their transfer, less what hides behind the share `tier_overlap` of the iteration's
    own time. `host` is work that the rates leave out because an engine may do it while the GPU computes the iteration
    before: it shows as far as it exceeds the head start with which an iteration is priced (sim.engine.overlap), as the
    launching of kernels does. An engine without a `second_runner` steps every model as vLLM's first one does. `boost` is
    what a GPU that has rested computes faster: whoever runs iterations one after another keeps the account of it
    (sim.engine.boost). `gpu` is the name under which its matrix products may have been measured (sim.products.known_to).

    `jumps` says whether decode iterations lie on chords, so that `stretch` applies. Sliding windows, sparse
    policies, KV in host RAM and kernels launched one by one make the price depend on each sequence's context or
    bend within a chord; such iterations are all priced one by one.
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
        streams: bool = False,
        capture_sizes: Sequence[int] = (),
        draft: StepTime | None = None,
        verify_s: float = 0.0,
        graph_reuse: bool = True,
        tiers: Sequence[Tier] = (),
        tier_overlap: float = 0.0,
        block_size: int = 16,
        host: HostWork = NO_WORK,
        second_runner: bool = True,
        boost: Boost = NO_BOOST,
        gpu: str = "",
    ) -> None:
        if not second_runner:
            model = replace(model, second_runner=False)
        self.model = model
        self.policy = policy
        self.boost = boost
        plain = policy.kind == "dense" and policy.placement == "hbm" and not model.window
        self.jumps = plain and not micro_batch and not capture_sizes
        self._from_host = policy.placement == "host"
        self._micro_batch = micro_batch
        self._streams = streams
        self._capture_sizes = sorted(capture_sizes)
        self._draft = draft
        self._verify_s = verify_s
        self._graph_reuse = graph_reuse
        self._tiers = tuple(tiers)
        self._tier_overlap = tier_overlap
        # micro-batches are those of an engine with kernels of its own
        self._coefficients = c = coefficients(model, precision, tp, "" if micro_batch else gpu)
        self._block_bytes = block_size * (c.kv_token_bytes + c.window_token_bytes)
        self._rates = rates
        self._rested = boost.rested(rates) if boost.share else rates
        self._tp = tp
        self._chords: dict[tuple[int, int], tuple[_Node, _Node]] = {}
        self._preparing = (
            to_ticks(host.iteration_s),
            to_ticks(host.sequence_s),
            to_ticks(host.prefill_s * (1.0 + c.runner2 * rates.runner2_prefill)),
        )
        self._works = any(self._preparing)
        self._late = to_ticks(host.late_launch_s)
        self._window = model.window
        self._heads = query_heads(model, tp)
        self._product_s = (
            c.body_flops / rates.linear_flops_per_s,
            c.expert_flops / rates.expert_flops_per_s,
            c.pair_flops / rates.attention_flops_per_s,
        )
        self._read_s = c.always_bytes / rates.beta
        self._launching = to_ticks(c.layers * rates.eager_layer_s + c.expert_layers * rates.eager_expert_layer_s)

    def iteration(self, iteration: Iteration, head_start: int = 0, rested: bool = False) -> int:
        """Ticks of an iteration as decided, before its requests advance, with the host `head_start` ticks ahead, on a GPU that has
        `rested` or has not.
        """
        contexts, chunks = split(iteration)
        shown, left = self.shown(len(iteration.scheduled), bool(chunks), head_start)
        if self.jumps and not chunks and not iteration.reloads:
            return shown + self.stretch(len(contexts), sum(contexts), spread(contexts)).first
        own = sum(self.priced(self.launched_late(shape, left), rested) for shape in self.shapes(contexts, chunks, iteration.places))
        own += self.late(len(contexts), chunks, own, left)
        return shown + own + self.drafting(contexts, chunks) + self.reloading(iteration, own)

    def late(self, batch: int, chunks: Sequence[Chunk], own: int, head_start: int) -> int:
        """Ticks by which a host's spells make an iteration of `own` ticks later that no graph holds: all of them where launching with this
        head start takes as long as it, none where launching twice as slowly would still be hidden behind it.
        """
        if not self._late or not self._launching or not chunks or batch + sum(n for n, _, _ in chunks) <= GRAPH_TOKENS:
            return 0
        beyond = max(self._launching - head_start, 0) + self._launching - own
        return self._late * min(max(beyond, 0), self._launching) // self._launching

    def preparing(self, sequences: int, prefill: bool) -> int:
        """Ticks of host work before an iteration of so many sequences can be launched, beyond what the rates hold."""
        each, per_sequence, with_prefill = self._preparing
        return each + sequences * per_sequence + prefill * with_prefill

    def shown(self, sequences: int, prefill: bool, head_start: int) -> tuple[int, int]:
        """(ticks of that work that the GPU waits for, head start left for launching)."""
        preparing = self.preparing(sequences, prefill) if self._works else 0
        return max(preparing - head_start, 0), max(head_start - preparing, 0)

    def occupied(self, sequences: int, tokens: int, prefill: bool) -> int:
        """Ticks for which an iteration keeps the host: preparing it, and launching its kernels where no graph does."""
        return self.preparing(sequences, prefill) + (self._launching if prefill and tokens > GRAPH_TOKENS else 0)

    def host(self, iteration: Iteration) -> int:
        """`occupied` of an iteration as decided, its requests at whatever stage."""
        return self.occupied(len(iteration.scheduled), iteration.total_tokens, any(tokens > 1 for _, tokens in iteration.scheduled))

    def shapes(self, contexts: list[int], chunks: list[Chunk], places: Sequence[int] = ()) -> list[Shape]:
        """The batches that the iteration is computed as; `places` are slot numbers of the decodes, then of the chunks."""
        if self._micro_batch:
            if self._streams:
                parts = equal_micro_batches(contexts, chunks, self._micro_batch, places)
            else:
                parts = (equal_micro_batches if self.model.state_layers else micro_batches)(contexts, chunks, self._micro_batch)
            return [replace(shape_of(self.model, *part, self.policy, self._tp), padding=0.0) for part in parts]
        shape = self._padded(shape_of(self.model, contexts, chunks, self.policy, self._tp))
        if not self._graph_reuse and any(rows > 1 for _, _, rows in chunks):
            shape = replace(shape, padding=0.0, eager=1.0)
        return [shape]

    def drafting(self, contexts: list[int], chunks: list[Chunk]) -> int:
        """Ticks spent on proposing the drafts that the iteration verifies."""
        verified = [(n, end) for n, end, rows in chunks if rows > 1]
        if not verified:
            return 0
        ticks = to_ticks(self._verify_s)
        if self._draft is not None:
            steps = max(n for n, _ in verified) - 1
            behind = [*contexts, *(end - n for n, end in verified)]
            ticks += steps * self._draft.priced(shape_of(self._draft.model, behind, [], self._draft.policy, self._tp))
        return ticks

    def reloading(self, iteration: Iteration, own: int) -> int:
        """Ticks that bringing KV blocks back adds to an iteration of `own` ticks; tiers transfer side by side."""
        if not iteration.reloads:
            return 0
        transfers = zip(self._tiers, iteration.reloads, strict=True)
        longest_s = max(tier.reload_s(blocks, self._block_bytes) for tier, blocks in transfers)
        return max(to_ticks(longest_s) - int(self._tier_overlap * own), 0)

    def mixed(
        self,
        batch: int,
        context: int,
        near: int,
        kept: int,
        chunks: Sequence[Chunk],
        head_start: int = 0,
        spread: float = 0,
        rested: bool = False,
    ) -> int:
        """Ticks of `chunks` beside `batch` decodes of summed `context` (tokens), `near` of it in the window and
        `kept` read and as far apart as `spread` says (sim.bill), with the host `head_start` ticks ahead, on a GPU
        that has `rested` or has not.
        """
        shown, left = self.shown(batch + len(chunks), True, head_start)
        if self._window or (chunks and chunks[0][2] > 1):
            part = shape_of(self.model, (), chunks, self.policy, self._tp)
            new, read, pairs, sampled = part.prefill_tokens, part.prefill_context, part.prefill_pairs, part.sampled
            window_read, window_pairs, has_prefill = part.prefill_window_context, part.prefill_window_pairs, part.has_prefill
            idle = part.prefill_idle_pairs
        else:  # the same sums, without what a window adds
            new, read, pairs, sampled, window_read, window_pairs, has_prefill = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, float(bool(chunks))
            idle, heads = 0.0, self._heads
            for n, end, rows in chunks:
                new += n
                read += end
                own = n * end - n * (n - 1) / 2
                pairs += own
                idle += own * idle_share(heads, n)
                sampled += rows
        tokens = batch + new
        eager = chunks and tokens > GRAPH_TOKENS
        price = self.priced(
            Shape(
                float(batch),
                float(context),
                float(near),
                float(kept),
                float(len(chunks)),
                new,
                read,
                pairs,
                window_read,
                window_pairs,
                batch + sampled,
                has_prefill,
                self._unlaunched(left) if eager else 0.0,
                0.0 if self._capture_sizes or self._micro_batch else captured_padding(tokens),
                float(spread),
                doublings(batch + len(chunks)),
                idle,
            ),
            rested,
        )
        return shown + price + self.late(batch, chunks, price, left)

    def products(self, batch: int, chunks: Sequence[Chunk]) -> int:
        """Ticks of an iteration in which matrix products are what it waits for: all rows' as far as they outlast the reading of weights,
        and the attention of chunks. None without chunks.
        """
        if not chunks or not self.boost.share:
            return 0
        rows, pairs = batch, 0.0
        for n, end, _ in chunks:
            rows += n
            pairs += n * end - n * (n - 1) / 2
        body, expert, pair = self._product_s
        linear = rows * body
        bound = linear / (1.0 + (self._read_s / linear) ** self._rates.smooth_p)
        return to_ticks(bound + rows * expert + pairs * pair)

    def products_of(self, iteration: Iteration) -> int:
        """`products` of an iteration as decided, before its requests advance."""
        if not self.boost.share:
            return 0
        contexts, chunks = split(iteration)
        return self.products(len(contexts), chunks)

    def stretch(self, batch: int, context: int, spread: float = 0) -> Stretch:
        """The decode iterations of `batch` sequences that begin at summed `context` (at least `batch`), as far apart as `spread` says
        (sim.bill), up to the chord's end. Their standard deviation stays: at the chord's other end it is half the share of the mean.
        """
        octave = (context // batch).bit_length() - 1
        chord = self._chords.get((batch, octave))
        if chord is None:
            chord = self._chords[batch, octave] = self._chord(batch, octave)
        first, last = chord
        node = batch << octave
        if spread > 0:
            place, within = share_place(sqrt(spread) / node)
            after, further = one_octave_on(place, within)
            start = first[place] + round(within * (first[place + 1] - first[place]))
            end = last[after] + round(further * (last[after + 1] - last[after]))
        else:
            start, end = first[0], last[0]
        slope = (end - start) // node
        return Stretch(start + slope * (context - node), slope * batch, -(-(2 * node - context) // batch))

    def priced(self, shape: Shape, rested: bool = False) -> int:
        """The formula, rounded to ticks, of a GPU that has rested or has not."""
        return to_ticks(step_time_s(self.bill(shape), self._rested if rested else self._rates))

    def bill(self, shape: Shape) -> Bill:
        """What the iteration moves and computes."""
        bill = bill_from(self._coefficients, shape, self.policy, self._tp)
        return prefill_read_where_it_lives(bill, shape, self._coefficients, self.policy) if self._from_host else bill

    def launched_late(self, shape: Shape, head_start: int) -> Shape:
        """The shape without the share of its layers that the host launches in a head start of so many ticks."""
        return replace(shape, eager=shape.eager * self._unlaunched(head_start)) if shape.eager and head_start else shape

    def _unlaunched(self, head_start: int) -> float:
        return max(1.0 - head_start / self._launching, 0.0) if self._launching else 0.0

    def _chord(self, batch: int, octave: int) -> tuple[_Node, _Node]:
        before = self._chords.get((batch, octave - 1))
        first = before[1] if before else self._node(batch, octave)
        return first, self._node(batch, octave + 1)

    def _node(self, batch: int, octave: int) -> _Node:
        b, c = float(batch), float(batch << octave)
        shape = self._padded(Shape(decode_seqs=b, decode_context=c, decode_kept=c, sampled=b, doublings=doublings(b)))
        idle = node(self._heads[0], batch, octave) if batch > 1 and self._heads[0] else ()
        least, most = (idle.index(found(idle)) for found in (min, max)) if idle else (0, 0)
        if least == most:
            return (self.priced(shape),) * len(SHARES)
        # the price is linear in idle
        low, high = (self.priced(replace(shape, decode_spread=(SHARES[place] * c) ** 2)) for place in (least, most))
        each = (high - low) / (idle[most] - idle[least])
        return tuple(low + round(each * (keys - idle[least])) for keys in idle)

    def _padded(self, shape: Shape) -> Shape:
        """An iteration as the graph captured for it computes it: rows of padding pass the linear layers and read no KV."""
        if self._micro_batch:
            return replace(shape, padding=0.0)
        tokens = shape.decode_seqs + shape.prefill_tokens
        if not self._capture_sizes:
            return replace(shape, padding=captured_padding(tokens))
        place = bisect_left(self._capture_sizes, tokens)
        if shape.prefill_seqs:
            return replace(shape, padding=0.0)
        if place == len(self._capture_sizes):  # no graph is that large: the host launches kernel by kernel
            return replace(shape, padding=0.0, eager=1.0)
        return replace(shape, padding=self._capture_sizes[place] - tokens)
