"""Cards before 8.9 score e4m3 summaries as others do: every value of the format, and the selection."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import launch, selector, summaries
from tests.kernels import caches


@triton.jit
def _every(code, out):
    at = tl.arange(0, 256)
    tl.store(out + at, summaries.widened(tl.load(code + at)))


def test_all_values_but_nan() -> None:
    code = torch.arange(256, dtype=torch.uint8, device=caches.DEVICE)
    out = torch.empty(256, dtype=torch.float16, device=caches.DEVICE)
    _every[(1,)](code, out)
    want = code.view(torch.float8_e4m3fn).to(torch.float16)
    finite = ~want.isnan()
    assert int(finite.sum()) == 254
    assert torch.equal(out[finite], want[finite])


def test_selection_is_the_same_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = caches.make(3, [300, 90], group=3)
    made = summaries.allocate(2, 2, 20, 32, kind="minmax_fp8", dtype=cache.q.dtype, device=cache.q.device, block=16)
    summaries.build(made, cache.k, cache.seq_lens, cache.table)
    want = selector.select(cache.q, made, cache.seq_lens, 4, chunk=16)
    monkeypatch.setattr(launch, "converts_e4m3", lambda: False)
    assert torch.equal(selector.select(cache.q, made, cache.seq_lens, 4, chunk=16), want)
