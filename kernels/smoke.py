"""`python -m kernels.smoke`: every kernel once on small odd shapes, against its reference. Made to run under a memory checker:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python -m kernels.smoke

(without the caching allocator, so that an access past a tensor is one past an allocation). Exit status 1 on a wrong answer.
"""

from __future__ import annotations

import sys

import torch

from kernels import floors, gather_decode, host_gather, model_step, reference, selector, summaries
from kernels.dense_decode import ERROR_BOUND, dense_decode
from kernels.gdn_decode import gdn_decode
from kernels.model_shape import Shape

BF16 = torch.bfloat16


def attention() -> dict[str, float]:
    """Dense, selected and host-resident attention of two sequences of 300 and 77 tokens: relative errors by name."""
    lens, page, heads, group, d = [300, 77], 16, 2, 7, 64
    pages = [-(-n // page) for n in lens]
    k, v = (torch.randn(sum(pages), heads, page, d, device="cuda").to(BF16) for _ in range(2))
    order = torch.randperm(sum(pages)).int()
    table = torch.zeros(2, max(pages), dtype=torch.int32)
    table[0, : pages[0]], table[1, : pages[1]] = order[: pages[0]], order[pages[0] :]
    q, table = torch.randn(2, heads * group, d, device="cuda").to(BF16), table.cuda()
    n = torch.tensor(lens, dtype=torch.int32, device="cuda")
    exact = reference.dense_decode(q, k, v, n, table)
    errors = {
        "dense": reference.relative_error(dense_decode(q, k, v, n, table, splits=3, tile=32), exact),
        "dense bulk": reference.relative_error(dense_decode(q, k, v, n, table, splits=3, tile=16, bulk=True), exact),
    }
    queue = {"splits": 2, "tile": 16, "bulk": True, "heads": 1, "queued": 0.5, "chunks": 5}
    errors["dense queue"] = reference.relative_error(dense_decode(q, k, v, n, table, **queue), exact)
    wide, both = (
        torch.randn(2, heads * group, 128, device="cuda").to(BF16),
        torch.randn(sum(pages), heads, 2, page, 128, device="cuda").to(BF16),
    )
    beside = (wide, both[:, :, 0], both[:, :, 1], n, table)
    errors["dense halves"] = reference.relative_error(dense_decode(*beside, **queue), reference.dense_decode(*beside))
    windowed = reference.dense_decode(q, k, v, n, table, sink=4, window=50)
    errors["window"] = reference.relative_error(dense_decode(q, k, v, n, table, sink=4, window=50), windowed)
    host = [x.cpu().pin_memory() for x in (k, v)]
    for kind in summaries.KINDS:
        made = summaries.allocate(2, heads, max(pages), d, kind=kind, dtype=BF16, device="cuda", block=page)
        summaries.build(made, k, n, table)
        chosen = selector.select(q, made, n, 3, chunk=16)
        want = reference.gather_decode(q, k, v, n, chosen, table, block=page)
        options = {"block": page, "tile": 32}
        got = gather_decode.gather_decode(q, k, v, n, chosen, table, **options)
        errors[f"gather {kind}"] = reference.relative_error(got, want)
        read = gather_decode.gather_decode(q, k, v, n, chosen, -1 - table, k_host=host[0], v_host=host[1], **options)
        errors[f"host {kind}"] = reference.relative_error(read, want)
    spare = [torch.cat([x, torch.zeros(6, heads, page, d, dtype=BF16, device="cuda")]) for x in (k, v)]
    host_gather.stage(*host, -1 - table, chosen, *spare, len(k), tile=16)
    staged = gather_decode.gather_decode(q, *spare, n, chosen, table, stage_page=len(k), block=page, tile=32)
    errors["staged"] = reference.relative_error(staged, want)
    return errors


def recurrence() -> float:
    """Gated-delta step of 3 sequences, 2 key and 6 value heads."""
    qkv, state = torch.randn(3, 2 * 2 * 32 + 6 * 16, device="cuda").to(BF16), torch.randn(3, 6, 16, 32, device="cuda")
    decay, beta = -torch.rand(3, 6, device="cuda"), torch.rand(3, 6, device="cuda")
    parts = [x.reshape(3, h, -1) for x, h in zip(qkv.split([64, 64, 96], dim=1), (2, 2, 6), strict=True)]
    want, _ = reference.gdn_decode(*parts, decay, beta, state, 32**-0.5, True)
    return reference.relative_error(gdn_decode(qkv, decay, beta, state, key_heads=2), want)


def steps() -> None:
    """Two whole-model steps of each kind; the tests compare them with float64."""
    shape = Shape(layers=1, hidden=48, heads_q=4, heads_kv=2, head_dim=16, ffn=40, vocab=70, qkv_bias=True)
    for modes in (("dense", "sparse"), ("tiered",)):
        for batch in (1, 3):
            step = model_step.Step(shape, batch, 62, modes=modes, k_blocks=2, block=16, headroom=16)
            for mode in modes:
                step.launch(mode)
                step.launch(mode)
                torch.cuda.synchronize()


def main() -> int:
    torch.manual_seed(0)
    x = torch.arange(1000, dtype=torch.int32, device="cuda")
    sums = torch.empty(4, dtype=torch.int32, device="cuda")
    floors.read_sum(x, sums, 256)
    floors.update_in_place(x, 256)
    errors = {**attention(), "gdn": recurrence()}
    steps()
    torch.cuda.synchronize()
    for name, error in errors.items():
        print(f"{name:20} {error:.2e}")
    return 0 if all(error <= ERROR_BOUND[BF16] for error in errors.values()) and int(sums.sum()) == 499500 else 1


if __name__ == "__main__":
    sys.exit(main())
