"""A whole decode step, embedding to greedy argmax, of a dense decoder with random weights: dense, sparse or tiered attention.

    step = Step(Shape(...), batch=1, context=2**20, modes=("dense", "sparse"))
    tokens = step.run("sparse")            # appends a token to every sequence, returns the next tokens [B]
    seconds = step.time_s("sparse")        # graph-replayed step times [repeats], from the same context each

    dense    reads the whole paged cache
    sparse   selects blocks from their summaries, reads the keep-set
    tiered   the same with all but the sink and newest blocks in pinned host memory, read over the link by the gather itself

The modes share weights, cache and every kernel but attention. The cache holds random keys and values: timing does not depend on them.
A step is one CUDA graph on a GPU and runs eagerly in Triton's interpreter on a CPU. Reference: `reference_model.advance`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from kernels import gather_decode, model_ops, partials, selector, summaries, timing
from kernels.dense_decode import dense_decode
from kernels.model_shape import LayerShape, Shape

MODES = ("dense", "sparse", "tiered")


class ModelStep:
    """State of a batch of sequences, advanced one token at a time.

    batch sequences of `context` tokens each, room for `headroom` more. modes: which of dense, sparse, tiered will run; tiered keeps
    the cache in pinned host memory and excludes the others. k_blocks selected of `kind` summaries, `block` tokens a block and page.
    Raises `ValueError` naming a bad argument, torch's OutOfMemoryError where the GPU is too small.
    """

    def __init__(
        self,
        shape: Shape,
        batch: int,
        context: int,
        *,
        modes: Sequence[str] = ("dense",),
        k_blocks: int = 8,
        kind: str = "minmax_fp8",
        sink_blocks: int = 1,
        local_blocks: int = 2,
        block: int = 128,
        headroom: int = 256,
        dtype: torch.dtype = torch.bfloat16,
        device: str | torch.device = "cuda",
        seed: int = 0,
    ) -> None:
        self.shape = shape
        if not modes or set(modes) - set(MODES):
            raise ValueError(f"modes: {modes!r} are not among {', '.join(MODES)}")
        if "tiered" in modes and len(set(modes)) > 1:
            raise ValueError("modes: tiered keeps its cache on the host and excludes the other modes")
        for name, value in (("batch", batch), ("context", context), ("k_blocks", k_blocks)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: {value!r} is not a positive integer")
        self.batch, self.context, self.modes, self.block = batch, context, tuple(modes), block
        self.k_blocks, self.sink, self.local = k_blocks, sink_blocks, local_blocks
        self.device, self.dtype = torch.device(device), dtype
        self.capacity = -(-(context + headroom) // block)
        self.gen = torch.Generator(self.device).manual_seed(seed)
        s = self.shape
        self.embedding = self._random(s.vocab, s.hidden)
        self.head = self.embedding if s.tied_embeddings else self._random(s.vocab, s.hidden, scale=s.hidden**-0.5)
        self.norm_out = torch.ones(s.hidden, dtype=dtype, device=self.device)
        self.layers = [LayerShape.random(s, self._random) for _ in range(s.layers)]
        self._caches(kind)
        self._buffers()
        self.reset()
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def _random(self, *size: int, scale: float = 1.0, bias: float = 0.0) -> torch.Tensor:
        out = torch.empty(size, dtype=self.dtype, device=self.device).normal_(0, scale, generator=self.gen)
        return out.add_(bias) if bias else out

    @property
    def tiered(self) -> bool:
        return "tiered" in self.modes

    @property
    def ring(self) -> int:
        """Device blocks per sequence besides the sinks, when tiered: the local ones and the one being left."""
        return self.local + 1 if self.tiered else 0

    def _caches(self, kind: str) -> None:
        s, pages = self.shape, self.batch * self.capacity
        size = (pages, s.heads_kv, self.block, s.head_dim)
        self.host: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self.summaries: list[summaries.Summaries] | None = None
        lens = torch.full((self.batch,), self.context, dtype=torch.int32, device=self.device)
        if self.tiered:
            self.host = [tuple(torch.empty(size, dtype=self.dtype, pin_memory=self.device.type == "cuda") for _ in range(2))
                         for _ in range(s.layers)]  # fmt: skip
            small = (self.batch * (self.sink + self.ring), *size[1:])
            self.cache = [tuple(torch.zeros(small, dtype=self.dtype, device=self.device) for _ in range(2)) for _ in range(s.layers)]
        else:
            # Keys of a page and head beside its values: what is read together lies together.
            beside = [self._random(*size[:2], 2, *size[2:]) for _ in range(s.layers)]
            self.cache = [(both[:, :, 0], both[:, :, 1]) for both in beside]
        order = torch.arange(pages, dtype=torch.int32, device=self.device)
        if not self.tiered:
            order = torch.randperm(pages, generator=self.gen, device=self.device).int()
        self.table = order.view(self.batch, self.capacity)
        if set(self.modes) & {"sparse", "tiered"}:
            self.summaries = []
            full = torch.empty(size, dtype=self.dtype, device=self.device) if self.tiered else None
            for i in range(s.layers):
                made = summaries.allocate(self.batch, s.heads_kv, self.capacity, s.head_dim, kind=kind, dtype=self.dtype,
                                          device=self.device, block=self.block)  # fmt: skip
                if full is not None:
                    self._fill_tiers(i, full, made, lens)
                else:
                    summaries.build(made, self.cache[i][0], lens, self.table)
                self.summaries.append(made)
        if self.tiered:
            self.table = self._tier_table()
        self.table_start = self.table.clone()

    def _slot(self, block: int) -> int:
        return block if block < self.sink else self.sink + (block - self.sink) % self.ring

    def _on_device(self) -> range:
        """Newest blocks that start out on the device."""
        used = -(-self.context // self.block)
        return range(max(self.sink, used - self.ring), used)

    def _fill_tiers(self, i: int, full: torch.Tensor, made: summaries.Summaries, lens: torch.Tensor) -> None:
        """Random keys and values of layer `i`, drawn on the device: to the host whole, to the device where it keeps them."""
        slots = self.sink + self.ring
        assert self.host is not None, "filled where the host has them"
        for which in (0, 1):
            full.normal_(generator=self.gen)
            if which == 0:
                summaries.build(made, full, lens, self.table)
            self.host[i][which].copy_(full)
            for b in range(self.batch):
                for block in (*range(min(self.sink, -(-self.context // self.block))), *self._on_device()):
                    self.cache[i][which][b * slots + self._slot(block)] = full[b * self.capacity + block]

    def _tier_table(self) -> torch.Tensor:
        table = -1 - self.table
        for b in range(self.batch):
            for block in (*range(min(self.sink, -(-self.context // self.block))), *self._on_device()):
                table[b, block] = b * (self.sink + self.ring) + self._slot(block)
        return table

    def _buffers(self) -> None:
        s, b = self.shape, self.batch
        empty = functools.partial(torch.empty, dtype=self.dtype, device=self.device)
        self.x, self.qkv = [empty(b, s.hidden) for _ in range(2)], empty(b, s.qkv_rows)
        self.q, self.attended = (empty(b, s.heads_q, s.head_dim) for _ in range(2))
        self.inner, self.logits = empty(b, s.ffn), torch.empty(b, s.vocab, dtype=torch.float32, device=self.device)
        self.best = torch.empty(b, dtype=torch.int64, device=self.device)
        self.tokens = torch.zeros(b, dtype=torch.int64, device=self.device)
        self.lens = torch.empty(b, dtype=torch.int32, device=self.device)
        rows, group = b * s.heads_kv, s.heads_q // s.heads_kv
        tile = min(32, self.block)
        parts = max(256, gather_decode.parts_of(self.k_blocks, self.block, self.sink, self.local, tile))
        self.parts = partials.Workspace.allocate(rows, parts, group, s.head_dim, self.device)
        self.selected = torch.empty(b, s.heads_kv, self.k_blocks, dtype=torch.int32, device=self.device)
        self.selecting = selector.SelectorWorkspace.allocate(rows, self.capacity, 16, self.device)

    def reset(self) -> None:
        """Back to `context` tokens and the first input token. The blocks written since stay as they are."""
        self.lens.fill_(self.context)
        self.table.copy_(self.table_start)
        self.best.copy_(0xFFFFFFFF - torch.arange(self.batch, device=self.device))

    def _attend(self, mode: str, i: int) -> None:
        k, v = self.cache[i]
        if mode == "dense":
            dense_decode(self.q, k, v, self.lens, self.table, out=self.attended, workspace=self.parts)
            return
        assert self.summaries is not None, "made for a mode with selection"
        selector.select(self.q, self.summaries[i], self.lens, self.k_blocks, sink_blocks=self.sink, local_blocks=self.local,
                        out=self.selected, workspace=self.selecting)  # fmt: skip
        host = {} if self.host is None else {"k_host": self.host[i][0], "v_host": self.host[i][1]}
        gather_decode.gather_decode(self.q, k, v, self.lens, self.selected, self.table, block=self.block, sink_blocks=self.sink,
                                    local_blocks=self.local, out=self.attended, workspace=self.parts, **host)  # fmt: skip

    def launch(self, mode: str) -> None:
        """Enqueue one step of `mode`: eight kernels a layer, ten with selection, and two."""
        if mode not in self.modes:
            raise ValueError(f"mode: {mode!r} is not among {', '.join(self.modes)} this step was made for")
        s, (x, y) = self.shape, self.x
        model_ops.embed(self.best, self.embedding, x, self.tokens, self.lens, self.table, host_pages=self.capacity,
                        page=self.block, sink=self.sink, ring=self.ring)  # fmt: skip
        for i, layer in enumerate(self.layers):
            k, v = self.cache[i]
            model_ops.linear(x, layer.w_qkv, self.qkv, bias=layer.b_qkv, norm=layer.norm_attention, eps=s.eps)
            model_ops.rope_append(
                self.qkv, self.q, k, v, self.table, self.lens, s.rope_theta, norms=layer.norms_qk, eps=s.eps,
                summary=None if self.summaries is None else self.summaries[i], host=None if self.host is None else self.host[i],
            )  # fmt: skip
            self._attend(mode, i)
            model_ops.linear(self.attended.view(self.batch, -1), layer.w_o, y, residual=x)
            model_ops.linear(y, layer.w_up, self.inner, norm=layer.norm_mlp, eps=s.eps, gated=True)
            model_ops.linear(self.inner, layer.w_down, x, residual=y)
        model_ops.linear(x, self.head, self.logits, norm=self.norm_out, eps=s.eps, best=self.best)

    def run(self, mode: str) -> torch.Tensor:
        """One step of `mode`; the next token of every sequence, [B] int64."""
        if self.device.type != "cuda":
            self.launch(mode)
        else:
            self.graph(mode).replay()
        return model_ops.token_of(self.best)

    def graph(self, mode: str) -> torch.cuda.CUDAGraph:
        """The captured step of `mode`."""
        if mode not in self.graphs:
            self.graphs[mode] = timing.capture([functools.partial(self.launch, mode)], warmup=1)
            self.reset()
        return self.graphs[mode]

    def time_s(self, mode: str, repeats: int = 15, steps: int = 4) -> np.ndarray:
        """Seconds per step, [repeats], each the mean of `steps` graph replays from `context` tokens on."""
        graph = self.graph(mode)
        out = []
        for _ in range(repeats + 1):
            self.reset()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(steps):
                graph.replay()
            end.record()
            end.synchronize()
            out.append(start.elapsed_time(end) * 1e-3 / steps)
        return np.asarray(out[1:])

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights one step reads."""
        return self.shape.weights_read * self.embedding.element_size()

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values a dense step reads at `context`."""
        return self.batch * self.context * self.shape.kv_per_token * self.embedding.element_size()

    @property
    def keep_bytes(self) -> int:
        """Bytes of keys and values of the selected blocks, all layers: what a tiered step moves over the link."""
        return self.batch * self.k_blocks * self.block * self.shape.kv_per_token * self.embedding.element_size()
