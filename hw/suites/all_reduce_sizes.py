"""All-reduce by size over all GPUs of this machine, one process a GPU: seconds per call, launched one by one and from a CUDA graph.

Bus bandwidth follows as 2 (n - 1) / n x size / seconds. Every size is checked once for its sum before it is timed. NCCL's settings are
taken from the environment as found.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hw.pace import seconds_of, summarize
from sim.errors import SimctlError

SIZES = tuple(2**n for n in range(10, 29, 2))
TIMEOUT_S = 90.0


def measure(world: int, backend: str = "nccl", sizes: tuple[int, ...] = SIZES, repeats: int = 12) -> list[dict[str, Any]]:
    """Rows of the floor table. Raises SimctlError when a rank fails, hangs or gets a wrong sum."""
    with tempfile.TemporaryDirectory() as folder:
        meeting, target = Path(folder) / "meeting", Path(folder) / "rows.json"
        task = {"world": world, "backend": backend, "sizes": sizes, "repeats": repeats, "meeting": str(meeting), "target": str(target)}
        program = [sys.executable, "-m", "hw.suites.all_reduce_sizes"]
        ranks = [subprocess.Popen([*program, json.dumps(task | {"rank": rank})], stderr=subprocess.PIPE) for rank in range(world)]
        deadline = time.monotonic() + TIMEOUT_S
        try:
            said = [process.communicate(timeout=max(0.1, deadline - time.monotonic()))[1].decode(errors="replace") for process in ranks]
        except subprocess.TimeoutExpired:
            raise SimctlError(f"all-reduce over {world} ranks did not end within {TIMEOUT_S:.0f} s") from None
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        for rank, process in enumerate(ranks):
            if process.returncode:
                raise SimctlError(f"all-reduce: rank {rank} ended with code {process.returncode}: {' '.join(said[rank].split())[-300:]}")
        found: list[dict[str, Any]] = json.loads(target.read_text())
    return found


def _rank(rank: int, world: int, backend: str, sizes: list[int], repeats: int, meeting: str, target: str) -> None:
    """One rank: every rank times, the first writes its own times (a call ends on all ranks within a launch of each other)."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world)
    rows: list[dict[str, Any]] = []
    try:
        for graphed in (False, True) if device.type == "cuda" else (False,):
            for size in sizes:
                samples = _times(torch.zeros(size // 2, dtype=torch.bfloat16, device=device), rank, world, repeats, graphed)
                what = "all_reduce_graph" if graphed else "all_reduce"
                rows.append({"what": what, "dtype": "bf16", "size_bytes": size, "gpus": world, "unit": "s", **summarize(samples, "value")})
    finally:
        if rank == 0:
            Path(target).write_text(json.dumps(rows))
    dist.destroy_process_group()


def _times(x: Any, rank: int, world: int, repeats: int, graphed: bool) -> list[float]:
    """Seconds per all-reduce of `x`, each sample a mean over calls in a row."""
    import torch
    import torch.distributed as dist

    x.fill_(rank + 1)
    dist.all_reduce(x)
    if not bool((x == world * (world + 1) / 2).all()):
        raise SystemExit(f"wrong sum over {world} ranks at {x.numel() * 2} bytes")
    x.zero_()  # sums of zeros stay finite however often they are repeated; the link does not look at values
    calls = 20 if x.numel() <= 2**20 else 4

    def work() -> None:
        for _ in range(calls):
            dist.all_reduce(x)

    work()
    run = work
    if graphed:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        run = graph.replay
        run()
    return [seconds_of(run, x.device.type) / calls for _ in range(repeats)]


if __name__ == "__main__":
    _rank(**json.loads(sys.argv[1]))
