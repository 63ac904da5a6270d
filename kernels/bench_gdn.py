"""Gated-delta decode cells of the benchmark."""

from __future__ import annotations

import torch

from kernels import alternatives, reference, timing
from kernels.bench_attention import Timer
from kernels.gdn_decode import ERROR_BOUND, STATE_ERROR_BOUND, gdn_decode
from kernels.results import Row, row

K = V = 128


def cells(batch: int, heads_v: int, key_heads: int, timer: Timer, update_bytes_per_s: float) -> list[Row]:
    """One (batch, heads) point: ours with float32 state, with bf16 state (its error said), and importable alternatives.

    `of_floor` is against the measured in-place read-and-write floor. Output and new state are gated before and after.
    """
    heads_k = key_heads
    one = batch * heads_v * K * V
    sets = max(1, min(16, -(-200_000_000 // (4 * one))))
    qkv = torch.randn(batch, 2 * heads_k * K + heads_v * V, device="cuda").bfloat16()
    decay, beta = -0.1 * torch.rand(batch, heads_v, device="cuda"), torch.rand(batch, heads_v, device="cuda")
    states = [torch.randn(batch, heads_v, V, K, device="cuda") for _ in range(sets)]
    halves = [s.bfloat16() for s in states]
    start = states[0].clone()
    rows: list[Row] = []
    scale = K**-0.5

    def ours(state: torch.Tensor, **options: object) -> torch.Tensor:
        return gdn_decode(qkv, decay, beta, state, key_heads=heads_k, **options)

    q, k, v = qkv.split([heads_k * K, heads_k * K, heads_v * V], dim=1)
    shaped = [x.reshape(batch, -1, K) for x in (q, k, v)]
    calls: dict[str, list[timing.Work]] = {
        "f32_state": [lambda s=s: ours(s) for s in states],
        "bf16_state": [lambda s=s: ours(s, allow_bf16_state=True) for s in halves],
    }
    # Alternatives start from the same state and keep their own copy of it; each set has its own.
    per_set = [alternatives.gated_delta(qkv, decay, beta, s, heads_k, scale) for s in states]
    for name in per_set[0]:
        calls[name] = [found[name] for found in per_set]

    def gate(name: str) -> float:
        """Largest relative error of output and new state over one step from where the state is now."""
        if name not in ("f32_state", "bf16_state"):
            return float("nan")
        state = (states if name == "f32_state" else halves)[0]
        want, want_state = _exact(shaped, decay, beta, state, scale)
        out = calls[name][0]()
        bound = STATE_ERROR_BOUND[state.dtype]
        return max(reference.relative_error(out, want) / ERROR_BOUND[qkv.dtype], reference.relative_error(state, want_state) / bound)

    before = {}
    for name in list(calls):
        try:
            if name in per_set[0]:
                want, _ = _exact(shaped, decay, beta, start, scale)
                before[name] = reference.relative_error(calls[name][0](), want) / ERROR_BOUND[qkv.dtype]
            else:
                before[name] = gate(name)
        except Exception as error:
            rows.append(row("gdn", "gdn_decode", name, batch=batch, note=f"did not run: {str(error).splitlines()[0][:120]}"))
            del calls[name]

    def on_error(name: str, error: Exception) -> None:
        rows.append(row("gdn", "gdn_decode", name, batch=batch, note=f"not captured: {str(error).splitlines()[0][:120]}"))

    passed = {name: c for name, c in calls.items() if before[name] <= 1}
    times = timing.interleaved(passed, timer.repeats, timer.graph_s, timer.deadline, on_error)
    for name in calls:
        if name not in times:
            if name not in passed:
                rows.append(row("gdn", "gdn_decode", name, batch=batch, error_before=before[name], note="failed its gate: not timed"))
            continue
        stats = timing.spread(times[name])
        moved = 2 * one * (2 if name == "bf16_state" else 4)
        note = f"{heads_v} value heads; errors are multiples of the bounds by dtype"
        rows.append(row(
            "gdn", "gdn_decode", name, batch=batch, dtype="bfloat16" if name == "bf16_state" else "float32",
            median=stats["median_s"], p10=stats["p10_s"], p90=stats["p90_s"], repeats=stats["repeats"], moved=float(moved),
            rate=moved / stats["median_s"], of_floor=moved / update_bytes_per_s / stats["median_s"],
            error_before=before[name], error_after=gate(name), error_bound=1.0, note=note,
        ))  # fmt: skip
        timer.log(f"gdn            {name:24} B={batch:<3} H={heads_v:<8} {stats['median_s'] * 1e6:10.2f} us "
                  f"{rows[-1]['of_floor'] * 100:6.1f} %")  # fmt: skip
    rows += _identical_tilings(qkv, decay, beta, start, heads_k, batch)
    return rows


def _exact(shaped: list[torch.Tensor], decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, scale: float):
    """Float64 step in slices of sequences, to bound its memory."""
    parts = [reference.gdn_decode(*(x[i : i + 8] for x in (*shaped, decay, beta, state)), scale, True) for i in range(0, state.shape[0], 8)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _identical_tilings(
    qkv: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, start: torch.Tensor, heads_k: int, batch: int
) -> list[Row]:
    """Whether every tiling gives the bits of the default one, on this GPU."""
    results = []
    for tile in (None, 8, 16, 64):
        state = start.clone()
        results.append((gdn_decode(qkv, decay, beta, state, key_heads=heads_k, tile_v=tile), state))
    same = all(torch.equal(o, results[0][0]) and torch.equal(s, results[0][1]) for o, s in results[1:])
    return [row("gdn", "gdn_tilings", "8, 16, 64 against default", batch=batch, error_before=0.0 if same else 1.0,
                error_bound=0.0, note="bit-identical" if same else "differs in bits")]  # fmt: skip
