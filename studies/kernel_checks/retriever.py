"""A small retriever with full attention, and how it is trained: two key tokens, seen once in a haystack, name the token that followed them.

Shapes: tokens [B, N]; keys and values [B, 1, N, D]; queries [B, M, G, D] of M needles of each haystack. One attention layer without
positions, so that it reads any length: a query of two key tokens, a key of the two tokens before, a value of the token itself. Trained on
random haystacks of up to 2,048 tokens with needles beside, which share one key token of each (distractors).

    model = train(seed=0)                     # a minute on a Hopper GPU
    k, v = model.cache(tokens)                # then any attention of kernels
    found = model.answer(attended)            # [B] tokens
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

VOCAB, DIM, GROUP, HEAD_DIM, TAPS = 4096, 256, 4, 64, 3
LENGTHS, BATCH, STEPS, RATE = (128, 256, 512, 1024, 2048), 64, 4000, 2e-3
NEEDLES, DISTRACTORS = 8, (0, 2, 8)
SLOT = 4  # tokens that a needle has to itself


class Retriever(nn.Module):
    """Embedding, one attention layer of GROUP query heads over one KV head, tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.query, self.key = nn.Linear(2 * DIM, GROUP * HEAD_DIM, bias=False), nn.Linear(2 * DIM, HEAD_DIM, bias=False)
        self.value, self.out = nn.Linear(DIM, HEAD_DIM, bias=False), nn.Linear(GROUP * HEAD_DIM, DIM, bias=False)
        nn.init.normal_(self.embedding.weight, std=DIM**-0.5)

    def queries(self, keys: torch.Tensor) -> torch.Tensor:
        """[B, M, GROUP, D] of key tokens [B, M, 2]."""
        return self.query(self.embedding(keys).flatten(2)).unflatten(2, (GROUP, HEAD_DIM))

    def cache(self, tokens: torch.Tensor, part: int = 2**16) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, 1, N, D] of tokens [B, N], `part` tokens at a time. The first two tokens have none before them."""
        keys, values = [], []
        for first in range(0, tokens.shape[1], part):
            e = self.embedding(nn.functional.pad(tokens, (2, 0))[:, first : first + part + 2])
            keys.append(self.key(torch.cat([e[:, :-2], e[:, 1:-1]], dim=-1)))
            values.append(self.value(e[:, 2:]))
        return torch.cat(keys, 1)[:, None], torch.cat(values, 1)[:, None]

    def logits(self, attended: torch.Tensor) -> torch.Tensor:
        """[B, VOCAB] of attended values [B, GROUP, D]."""
        return self.out(attended.flatten(1)) @ self.embedding.weight.t()

    def answer(self, attended: torch.Tensor) -> torch.Tensor:
        """The likeliest token, [B]."""
        return self.logits(attended).argmax(-1)

    def forward(self, tokens: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Logits [B M, VOCAB] of the values of key tokens [B, M, 2]."""
        q, (k, v) = self.queries(keys), self.cache(tokens)
        attended = nn.functional.scaled_dot_product_attention(q.flatten(1, 2)[:, None], k, v)[:, 0]
        return self.logits(attended.view(-1, GROUP, HEAD_DIM))


def haystacks(
    count: int,
    length: int,
    needles: int,
    distractors: int,
    gen: torch.Generator,
    first: int = 0,
    last: int = 0,
    paragraph: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens [count, length], key tokens [count, needles, 2], values [count, needles], their positions): random tokens, in which each
    needle and its `distractors`, which have one of its key tokens, lie anywhere but in the first and last tokens named. With a `paragraph`
    of so many tokens the haystack is one random paragraph over and over.
    """
    device = gen.device

    def draw(*size: int) -> torch.Tensor:
        return torch.randint(VOCAB, size, generator=gen, device=device)

    planted = draw(count, needles, 1 + distractors, 3)
    for i in range(distractors):
        planted[:, :, 1 + i, i % 2] = planted[:, :, 0, i % 2]
    slots = (length - first - last) // SLOT
    if needles * (1 + distractors) > slots:
        raise ValueError(f"length: {length} tokens do not hold {needles} needles with {distractors} distractors each")
    places = torch.rand(count, slots, generator=gen, device=device).argsort(1)[:, : needles * (1 + distractors)] * SLOT + first
    tokens = draw(count, paragraph).repeat(1, -(-length // paragraph))[:, :length] if paragraph else draw(count, length)
    rows = torch.arange(count, device=device)[:, None]
    for i in range(3):
        tokens[rows, places + i] = planted[..., i].flatten(1)
    at = places.view(count, needles, -1)[:, :, 0] + 2
    return tokens, planted[:, :, 0, :2], planted[:, :, 0, 2], at


def train(seed: int = 0, device: str = "cuda", steps: int = STEPS, log: Callable[[str], None] = print) -> Retriever:
    """A retriever trained from `seed`; the same weights again on the same kind of device."""
    torch.manual_seed(seed)
    gen = torch.Generator(device).manual_seed(seed)
    model = Retriever().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        # Short haystacks first: a long one says too little before anything has been learnt.
        stage = min(len(LENGTHS) - 1, step * (len(LENGTHS) + 1) // steps)
        length, beside = LENGTHS[stage], DISTRACTORS[step % (1 + min(stage, len(DISTRACTORS) - 1))]
        tokens, keys, value, _ = haystacks(BATCH, length, NEEDLES if length > 256 else 3, beside, gen)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.cross_entropy(model(tokens, keys).float(), value.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 250 == 0 or step == steps - 1:
            log(f"step {step}, {length} tokens: loss {loss.item():.3f}")
    return model.eval().requires_grad_(False)
