"""A small engine's paged cache: continuous batching, prefix hits, preemption, reuse of pages. Keys are whole numbers, exact in 16 bits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

PAGE, D = 128, 16


@dataclass(eq=False)
class Request:
    document: int
    prompt: int
    limit: int
    keys: torch.Tensor  # [limit, D]: what its tokens would write
    computed: int = 0
    pages: list[int] = field(default_factory=list)


class PagedEngine:
    """`step` chooses sequences and new tokens, gives them pages and writes their keys; it returns what an attention backend is handed."""

    def __init__(self, seed: int, pages: int = 14, heads: int = 1) -> None:
        self.rng, self.gen = random.Random(seed), torch.Generator().manual_seed(seed)
        self.documents = [self.ints(PAGE * 9) for _ in range(2)]
        self.keys = torch.full((pages, heads, PAGE, D), float("nan"), dtype=torch.bfloat16)
        self.values = torch.randn(pages, heads, PAGE, D, generator=self.gen).to(torch.bfloat16)
        self.free = list(range(1, pages))  # least recently used first; page 0 is nobody's
        self.cached: dict[tuple[int, int], int] = {}  # (document, block): page that holds it
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.hits = self.preemptions = 0

    def ints(self, tokens: int) -> torch.Tensor:
        return torch.randint(-8, 9, (tokens, D), generator=self.gen).to(torch.bfloat16)

    def arrive(self) -> None:
        document = self.rng.randrange(2)
        prompt = self.rng.choice((3, 5, 7, 8)) * PAGE + self.rng.choice((-3, -1, 0, 1, 60))
        limit = prompt + self.rng.choice((2, 5, 140))
        self.waiting.append(Request(document, prompt, limit, torch.cat([self.documents[document][:prompt], self.ints(limit - prompt)])))

    def take_page(self) -> int | None:
        if not self.free:
            return None
        page = self.free.pop(0)
        self.cached = {key: held for key, held in self.cached.items() if held != page}
        return page

    def release(self, request: Request) -> None:
        held = {page for other in self.running if other is not request for page in other.pages}
        self.free += [page for page in reversed(request.pages) if page not in held]
        request.pages, request.computed = [], 0

    def admit(self, request: Request) -> None:
        """The prompt's full blocks that the cache still has, less the last token's."""
        for block in range((request.prompt - 1) // PAGE):
            page = self.cached.get((request.document, block))
            if page is None:
                break
            if page in self.free:
                self.free.remove(page)
            request.pages.append(page)
            self.hits += 1
        request.computed = len(request.pages) * PAGE
        self.running.append(request)

    def step(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """(page table [B, pages], query starts [B + 1], lengths [B], most new tokens) of the next iteration."""
        if self.rng.random() < 0.6 or not (self.running or self.waiting):
            self.arrive()
        if self.waiting and len(self.running) < 3:
            self.admit(self.waiting.pop(0))
        news: list[tuple[Request, int]] = []
        for request in list(self.running):
            left = request.prompt - request.computed
            new = min(left, self.rng.choice((127, 128, 500))) if left > 0 else 1
            if request in self.running and self.give_pages(request, new):
                news.append((request, new))
        news = [(request, new) for request, new in news if request in self.running]
        news.sort(key=lambda item: item[1] != 1)  # decoding sequences first
        for request, new in news:
            self.write(request, new)
        if not news:
            return self.step()
        longest = max(len(request.pages) for request, _ in news)
        table = torch.tensor([request.pages + [0] * (longest - len(request.pages)) for request, _ in news], dtype=torch.int32)
        starts = torch.tensor([sum(new for _, new in news[:i]) for i in range(len(news) + 1)], dtype=torch.int32)
        lens = torch.tensor([request.computed for request, _ in news], dtype=torch.int32)
        for request in [r for r, _ in news if r.computed >= r.limit]:
            self.release(request)
            self.running.remove(request)
        return table, starts, lens, max(new for _, new in news)

    def give_pages(self, request: Request, new: int) -> bool:
        while len(request.pages) * PAGE < request.computed + new:
            page = self.take_page()
            if page is not None:
                request.pages.append(page)
                continue
            last = self.running.pop()
            self.preemptions += 1
            self.release(last)
            self.waiting.insert(0, last)
            if last is request:
                return False
        return True

    def write(self, request: Request, new: int) -> None:
        for position in range(request.computed, request.computed + new):
            if position % PAGE == 0:
                self.keys[request.pages[position // PAGE]] = float("nan")  # what was there is gone
            self.keys[request.pages[position // PAGE], :, position % PAGE] = request.keys[position]
        request.computed += new
        for block in range(min(request.computed, request.prompt) // PAGE):
            self.cached.setdefault((request.document, block), request.pages[block])
