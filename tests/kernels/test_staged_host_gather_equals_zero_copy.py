import pytest
import torch

from kernels import host_gather, reference
from kernels.dense_decode import ERROR_BOUND
from kernels.gather_decode import gather_decode
from tests.kernels import caches


@pytest.mark.parametrize("programs", [None, 1, 5])
def test_staged_blocks_give_the_bits_of_blocks_read_in_place(programs: int | None) -> None:
    cache = caches.make(1, [170, 60], page=16)
    k = 3
    selected = caches.random_blocks(cache, k, 16, 2)
    host = [x.cpu().pin_memory() if torch.cuda.is_available() else x.clone() for x in (cache.k, cache.v)]
    first = cache.k.shape[0]
    spare = torch.full((2 * k, *cache.k.shape[1:]), float("nan"), dtype=cache.k.dtype, device=cache.k.device)
    device = [torch.cat([torch.full_like(x, float("nan")), spare]) for x in (cache.k, cache.v)]
    table = -1 - cache.table
    for b, n in enumerate((170, 60)):
        last = -(-n // 16)
        for block in (0, last - 2, last - 1):
            page = int(cache.table[b, block])
            table[b, block] = page
            for mine, theirs in zip(device, (cache.k, cache.v), strict=True):
                mine[page] = theirs[page]
    host_gather.stage(*host, table, selected, *device, first, tile=16, programs=programs)
    options = {"block": 16, "tile": 16}
    staged = gather_decode(cache.q, *device, cache.seq_lens, selected, table, stage_page=first, **options)
    read = gather_decode(cache.q, *device, cache.seq_lens, selected, table, k_host=host[0], v_host=host[1], **options)
    assert torch.equal(staged, read)
    want = reference.gather_decode(cache.q, cache.k, cache.v, cache.seq_lens, selected, cache.table, block=16)
    assert reference.relative_error(staged, want) <= ERROR_BOUND[torch.bfloat16]
