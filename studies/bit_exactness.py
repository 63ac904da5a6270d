"""Two orders of one recurrence: how long two engines that compute the same gated delta net go on naming the same tokens.

python -m studies.bit_exactness [--tokens N] [--texts N] [--seed N]

A toy decoder of random weights decodes greedily on the CPU, twice: once in the order of llama.cpp's recurrence, once in that of vLLM's
(scenarios/data/reference/gdn/recurrence_equations.csv). Both have one formula, the same weights and a float32 state; sums run in another
order and the decay is applied before or after the product. All else is computed alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray

from simctl.text.layout import table

Array = NDArray[np.float32]
Step = Callable[[Array, Array, Array, Array, Array, Array], tuple[Array, Array]]
LAYERS, WIDTH, HEADS, DIM, VOCABULARY = 4, 256, 2, 32, 2048


def decay_after(state: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> tuple[Array, Array]:
    """(new state, output) in llama.cpp's order: the product with the state of before, then the decay; sums over keys one after the other.

    state [text, head, key, value]; q, k [text, head, key]; v [text, head, value]; decay, beta [text, head].
    """
    held = _in_turn(state, k)
    delta = (v - decay[..., None] * held) * beta[..., None]
    new = decay[..., None, None] * state + k[..., None] * delta[..., None, :]
    return new, _in_turn(new, q)


def decay_before(state: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> tuple[Array, Array]:
    """The same step in vLLM's order: the state decays first; sums over keys as a tree. Shapes as in `decay_after`."""
    faded = state * decay[..., None, None]
    delta = (v - _as_tree(faded, k)) * beta[..., None]
    new = faded + k[..., None] * delta[..., None, :]
    return new, _as_tree(new, q)


def _in_turn(state: Array, by: Array) -> Array:
    found: Array = np.cumsum(state * by[..., None], axis=-2)[..., -1, :]
    return found


def _as_tree(state: Array, by: Array) -> Array:
    parts = state * by[..., None]
    while parts.shape[-2] > 1:
        half = parts.shape[-2] // 2
        parts = parts[..., :half, :] + parts[..., half:, :]
    found: Array = parts[..., 0, :]
    return found


def exact(x: Array) -> Array:
    """Float32 as it is."""
    return x


def bf16(x: Array) -> Array:
    """Rounded to the nearest bfloat16, ties to even, kept as float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    found: Array = rounded.view(np.float32)
    return found


class Decoder:
    """A toy decoder of random weights: embedding, layers of gated delta net, head. `activations` rounds what leaves a layer."""

    def __init__(self, seed: int, texts: int, step: Step, activations: Callable[[Array], Array], state: Callable[[Array], Array]):
        rng = np.random.default_rng(seed)

        def weights(rows: int, columns: int) -> Array:
            drawn: Array = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
            return drawn

        inner = HEADS * DIM
        self.embedding = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
        self.head = weights(WIDTH, VOCABULARY)
        self.layers = [(weights(WIDTH, 3 * inner), weights(WIDTH, 2 * HEADS), weights(inner, WIDTH)) for _ in range(LAYERS)]
        self.states = [np.zeros((texts, HEADS, DIM, DIM), np.float32) for _ in range(LAYERS)]
        self.step, self.activations, self.rounded = step, activations, state

    def next_tokens(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The likeliest next token of each text [text], after one more."""
        x = self.embedding[tokens]
        for i, (project, gates, back) in enumerate(self.layers):
            seen = self.activations(_normed(x))
            q, k, v = (part.reshape(-1, HEADS, DIM) for part in np.split(seen @ project, 3, axis=-1))
            decay, beta = (1 / (1 + np.exp(-part)) for part in np.split(seen @ gates, 2, axis=-1))
            decay = np.float32(0.9) + np.float32(0.1) * decay
            new, out = self.step(self.states[i], _normed(q) / np.sqrt(np.float32(DIM)), _unit(k), v, decay, beta)
            self.states[i] = self.rounded(new)
            x = self.activations(x + _normed(out.reshape(len(tokens), -1)) @ back)
        likeliest: NDArray[np.int64] = np.argmax(_normed(x) @ self.head, axis=-1)
        return likeliest


def _normed(x: Array) -> Array:
    found: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6))
    return found


def _unit(x: Array) -> Array:
    found: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + np.float32(1e-6))
    return found


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two orders. `same_state`: share of state numbers with the same bits after the last token that both read alike; `given`: share
    of equal likeliest tokens where both read one text; `free` [token]: share of texts still equal up to that token, each reading its own.
    """

    same_state: float
    given: float
    free: NDArray[np.float64]


def agreement(
    tokens: int, texts: int, seed: int, activations: Callable[[Array], Array] = exact, state: Callable[[Array], Array] = exact,
    steps: tuple[Step, Step] = (decay_after, decay_before),
) -> Agreement:  # fmt: skip
    """Decode `texts` of `tokens` greedily by both orders, on one text and each on its own."""
    first = np.random.default_rng(seed + 1).integers(VOCABULARY, size=texts)

    def pair() -> list[Decoder]:
        return [Decoder(seed, texts, step, activations, state) for step in steps]

    one, other = pair()
    read, same = first, 0
    for _ in range(tokens):
        mine, theirs = one.next_tokens(read), other.next_tokens(read)
        same, read = same + int((mine == theirs).sum()), mine
    bits = np.mean([a == b for a, b in zip(one.states, other.states, strict=True)])
    apart, alone = pair()
    mine = theirs = first
    equal, free = np.ones(texts, dtype=bool), []
    for _ in range(tokens):
        mine, theirs = apart.next_tokens(mine), alone.next_tokens(theirs)
        equal &= mine == theirs
        free.append(equal.mean())
    return Agreement(float(bits), same / (tokens * texts), np.array(free))


ARMS = {
    "float32 throughout": (exact, exact),
    "bf16 activations, float32 state": (bf16, exact),
    "bf16 activations, bf16 state": (bf16, bf16),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tokens", default=256, show_default=True, type=click.IntRange(16, 100_000))
@click.option("--texts", default=32, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--seed", default=0, show_default=True)
def main(tokens: int, texts: int, seed: int) -> None:
    """Decode by two orders of one recurrence and compare the tokens."""
    marks = sorted({m for m in (16, 64, 256, 1024, tokens) if m <= tokens})
    rows = []
    for name, (activations, state) in ARMS.items():
        found = agreement(tokens, texts, seed, activations, state)
        free = [f"{found.free[m - 1]:.2f}" for m in marks]
        rows.append((name, f"{100 * found.same_state:.0f} %", f"{100 * found.given:.2f} %", *free))
    click.echo(f"{texts} texts, greedy; share of texts still equal after so many tokens")
    click.echo(table(("precision", "same state bits", "same token", *(f"{m}" for m in marks)), rows))


if __name__ == "__main__":
    sys.exit(main())
