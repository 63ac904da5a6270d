"""Attention cells of the benchmark: dense decode against every alternative present, then the sparse operation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernels import alternatives, gather_decode, page_order, partials, pools, reference, selector, summaries, timing
from kernels.dense_decode import ERROR_BOUND, dense_decode
from kernels.results import Row, row

HEADS_Q, HEADS_KV, D, PAGE = 28, 4, 128, pools.PAGE
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Timer:
    """What every cell is measured with."""

    read_bytes_per_s: float
    repeats: int = 15
    graph_s: float = 1e-3
    deadline: float = float("inf")
    log: Callable[[str], None] = print


def measured(
    timer: Timer, suite: str, op: str, candidates: dict[str, list[timing.Work]], refs: dict[str, torch.Tensor],
    moved: dict[str, int], **labels: object,
) -> list[Row]:  # fmt: skip
    """Gate each candidate's first call against float64, time all of them interleaved, gate again; one row each.

    A candidate that fails its first gate or cannot run gets a row with the reason and no time.
    """
    rows, passed, before = [], {}, {}
    bound = ERROR_BOUND[BF16]
    for name, calls in candidates.items():
        try:
            before[name] = reference.relative_error(calls[0](), refs[name])
        except (RuntimeError, ValueError, TypeError) as error:
            rows.append(row(suite, op, name, note=f"did not run: {str(error).splitlines()[0][:120]}", **labels))
            continue
        if before[name] <= bound:
            passed[name] = calls
        else:
            failed = {"error_before": before[name], "error_bound": bound, "note": "failed its gate: not timed"}
            rows.append(row(suite, op, name, **failed, **labels))

    def on_error(name: str, error: Exception) -> None:
        rows.append(row(suite, op, name, note=f"not captured: {str(error).splitlines()[0][:120]}", **labels))

    times = timing.interleaved(passed, timer.repeats, timer.graph_s, timer.deadline, on_error)
    for name, values in times.items():
        stats = timing.spread(values)
        after = reference.relative_error(passed[name][0](), refs[name])
        result = {
            "median": stats["median_s"], "p10": stats["p10_s"], "p90": stats["p90_s"], "repeats": stats["repeats"],
            "moved": float(moved[name]), "rate": moved[name] / stats["median_s"],
            "of_floor": moved[name] / timer.read_bytes_per_s / stats["median_s"],
            "error_before": before[name], "error_after": after, "error_bound": bound,
            "note": "" if after <= bound else "failed its gate after timing",
        }  # fmt: skip
        rows.append(row(suite, op, name, **result, **labels))
        timer.log(f"{op:14} {name:24} B={labels['batch']:<3} C={labels['context']:<8} {stats['median_s'] * 1e6:10.2f} us "
                  f"{result['of_floor'] * 100:6.1f} % err {after:.1e}")  # fmt: skip
    return rows


def dense(cell: pools.Cell, timer: Timer, variants: bool = False) -> list[Row]:
    """Dense decode of a cell: ours, paged and contiguous, and the alternatives. Pages are of 128 tokens, keys beside values: in random
    order, the same sorted, and each sequence's in a run; with `variants` also in random order of 256 tokens, with keys and values apart,
    these of 16 tokens, too, and with every program's share fixed; and handed out in turn. What sorting takes has a row of its own."""
    heads = HEADS_KV
    refs: dict[str, torch.Tensor] = {}
    calls: dict[str, list[timing.Work]] = {}
    work = partials.Workspace.allocate(cell.batch * heads, 256, HEADS_Q // heads, D, "cuda")
    out = torch.empty_like(cell.q[0])
    exact = pools.exact_dense(cell.q[0], *cell.pages(0), cell.table)
    pages = cell.context // PAGE
    in_order = torch.arange(cell.batch * pages * heads, device="cuda", dtype=torch.int32).view(cell.batch, heads, pages)

    def ours(
        i: int, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor | page_order.SortedPages | None, **options: float
    ) -> timing.Work:
        return lambda: dense_decode(cell.q[i], k, v, cell.seq_lens, table, out=out, workspace=work, **options)

    sets = range(cell.sets)
    calls["paged"] = [ours(i, *cell.pages(i), cell.table) for i in sets]
    ascending = cell.sorted_table()
    calls["paged_sorted"] = [ours(i, *cell.pages(i), ascending) for i in sets]
    refs["paged"] = refs["paged_sorted"] = exact  # the same pages
    ordered = cell.ascending_table()
    calls["paged_in_order"] = [ours(i, *cell.pages(i), ordered) for i in sets]
    refs["paged_in_order"] = pools.exact_dense(cell.q[0], *cell.pages(0), ordered)
    if variants:
        calls["paged_fixed"], refs["paged_fixed"] = [ours(i, *cell.pages(i), cell.table, queued=0.0) for i in sets], exact
        of_16, of_256 = cell.random_table(16), cell.random_table(256)
        for name, caches, table in (
            ("paged_apart", [cell.pages_apart(i) for i in sets], cell.table),
            ("paged_in_turn", [cell.pages(i) for i in sets], cell.ascending_table(in_turn=True)),
            ("paged_16", [cell.pages_apart(i, 16) for i in sets], of_16),
            ("paged_256", [cell.pages(i, 256) for i in sets], of_256),
        ):
            calls[name] = [ours(i, *caches[i], table) for i in sets]
            refs[name] = pools.exact_dense(cell.q[0], *caches[0], table, step=256 * PAGE // caches[0][0].shape[2])
    # Contiguous [B, KV heads, N, D] is the same memory as pages of one head each; its exact result is computed that way.
    flat_exact = torch.empty_like(exact)
    for h in range(heads):
        rows = slice(h * HEADS_Q // heads, (h + 1) * HEADS_Q // heads)
        k, v = (x.view(-1, 1, PAGE, D) for x in cell.pages_apart(0))
        flat_exact[:, rows] = pools.exact_dense(cell.q[0][:, rows].contiguous(), k, v, in_order[:, h], step=1024)
    calls["contiguous"] = [ours(i, *cell.contiguous(i), None) for i in sets]
    refs["contiguous"] = flat_exact
    per_set = [alternatives.sdpa(cell.q[i], *cell.contiguous(i)) for i in sets]
    for name in per_set[0]:
        calls[name] = [found[name] for found in per_set]
        refs[name] = flat_exact
    token_major = [[x.view(-1, PAGE, heads, D) for x in cell.pages_apart(i)] for i in sets]
    engine = [alternatives.fa3_paged(cell.q[i], *token_major[i], cell.table, cell.seq_lens) for i in sets]
    for name in engine[0]:
        calls[name] = [found[name] for found in engine]
        refs[name] = pools.exact_dense(cell.q[0], *(x.transpose(1, 2) for x in token_major[0]), cell.table)
    moved = dict.fromkeys(calls, cell.kv_bytes)
    labels = {"batch": cell.batch, "context": cell.context, "dtype": "bfloat16"}
    return [*measured(timer, "dense", "dense_decode", calls, refs, moved, **labels), _sorting(cell, timer)]


def _sorting(cell: pools.Cell, timer: Timer) -> Row:
    """What it takes to sort the page table of a cell, once for all layers and steps: host seconds until it is done, launches included."""
    times = np.empty(timer.repeats + 2)
    for i in range(times.size):
        torch.cuda.synchronize()
        start = time.perf_counter()
        cell.sorted_table()
        torch.cuda.synchronize()
        times[i] = time.perf_counter() - start
    stats = timing.spread(times[2:])
    found = {"median": stats["median_s"], "p10": stats["p10_s"], "p90": stats["p90_s"], "repeats": stats["repeats"]}
    timer.log(f"{'sort_pages':14} {'':24} B={cell.batch:<3} C={cell.context:<8} {stats['median_s'] * 1e6:10.2f} us")
    return row("pages", "sort_pages", "sort_pages", dtype="int32", batch=cell.batch, context=cell.context, **found)


def sparse(cell: pools.Cell, timer: Timer, k: int, kinds: tuple[str, ...] = ("minmax_fp8", "minmax")) -> list[Row]:
    """The sparse operation of a cell with k selected blocks: selection and gather together, and each alone."""
    rows: list[Row] = []
    n_rows, blocks = cell.batch * HEADS_KV, cell.context // PAGE
    parts = partials.Workspace.allocate(n_rows, gather_decode.parts_of(k, PAGE, 1, 2, 32), HEADS_Q // HEADS_KV, D, "cuda")
    valid = blocks - 3
    kept = min(blocks, k + 3) * PAGE * 2 * D * 2 * n_rows
    for kind in kinds:
        made = [_summaries(cell, i, kind) for i in range(cell.sets)]
        chosen = torch.empty(cell.batch, HEADS_KV, k, dtype=torch.int32, device="cuda")
        out = torch.empty_like(cell.q[0])
        work = selector.Workspace.allocate(n_rows, blocks, 64, "cuda")

        def select(i: int, made=made, chosen=chosen, work=work) -> torch.Tensor:
            return selector.select(cell.q[i], made[i], cell.seq_lens, k, out=chosen, workspace=work)

        def gather(i: int, chosen=chosen, out=out) -> torch.Tensor:
            return gather_decode.gather_decode(cell.q[i], *cell.pages(i), cell.seq_lens, chosen, cell.table, out=out, workspace=parts)

        def both(i: int, select=select, gather=gather) -> torch.Tensor:
            select(i)
            return gather(i)

        exact, note = _checked_selection(cell, made[0], k, select(0))
        scan = blocks * n_rows * made[0].bytes_per_block
        labels = {"batch": cell.batch, "context": cell.context, "dtype": "bfloat16", "k_blocks": k}
        if note:
            rows.append(row("sparse", "select", kind, note=note, **labels))
            continue
        sets = range(cell.sets)
        calls = {f"{kind}": [lambda i=i, f=both: f(i) for i in sets]}
        rows += measured(timer, "sparse", "select_gather", calls, {kind: exact}, {kind: scan + kept}, **labels)
        # Alone, the gather would find the same few blocks in the L2 cache at every call: it gets other blocks each time.
        others = [_random_blocks(cell, k, valid) for _ in range(max(cell.sets, -(-200_000_000 // kept)))]
        timed = {
            "select": [lambda i=i, f=select: f(i) for i in sets],
            "gather": [lambda i=i, f=gather, o=o: f(i % cell.sets, o) for i, o in enumerate(others)],
        }
        for name, values in timing.interleaved(timed, timer.repeats, timer.graph_s, timer.deadline).items():
            stats = timing.spread(values)
            moved = scan if name == "select" else kept
            found = {
                "median": stats["median_s"], "p10": stats["p10_s"], "p90": stats["p90_s"], "repeats": stats["repeats"],
                "moved": float(moved), "rate": moved / stats["median_s"],
                "of_floor": moved / timer.read_bytes_per_s / stats["median_s"],
            }  # fmt: skip
            rows.append(row("sparse", name, kind, **found, **labels))
            timer.log(f"{name:14} {kind:24} B={cell.batch:<3} C={cell.context:<8} {stats['median_s'] * 1e6:10.2f} us k={k}")
    return rows


def _random_blocks(cell: pools.Cell, k: int, valid: int) -> torch.Tensor:
    """k distinct candidate blocks of each (sequence, KV head) at random; -1 where there are fewer."""
    order = torch.rand(cell.batch, HEADS_KV, max(valid, k), device="cuda")
    order[..., valid:] = -1.0
    chosen = order.topk(k, dim=-1).indices.int() + 1
    return torch.where(chosen <= valid, chosen, -1).contiguous()


def _summaries(cell: pools.Cell, i: int, kind: str) -> summaries.Summaries:
    empty = summaries.allocate(cell.batch, HEADS_KV, cell.context // PAGE, D, kind=kind, dtype=BF16, device="cuda")
    return summaries.build(empty, cell.pages(i)[0], cell.seq_lens, cell.table)


def _checked_selection(cell: pools.Cell, made: summaries.Summaries, k: int, chosen: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Exact attention over what was chosen, and why the choice is wrong, if it is."""
    scores = torch.full(made.data.shape[:3], -float("inf"), device="cuda")
    again = selector.select(cell.q[0], made, cell.seq_lens, k, scores=scores)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k].int()
    valid = max(0, made.blocks - 3)
    order[..., valid:] = -1
    note = "" if torch.equal(order, chosen) and torch.equal(again, chosen) else "selection is not the top k of its scores"
    worst = 0.0
    for b in range(cell.batch):
        low, high = made.dequantised_row(b)
        exact = reference.block_scores(cell.q[0][b : b + 1], low[None], high[None])[0, :, 1:-2]
        if exact.numel():
            worst = max(worst, float((scores[b, :, 1:-2] - exact).abs().max() / exact.abs().max()))
    if not worst <= selector.SCORE_BOUND[made.data.dtype]:
        note = f"scores are off by {worst:.1e}"
    return pools.exact_sparse(cell, 0, chosen), note
