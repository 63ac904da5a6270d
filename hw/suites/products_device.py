"""The products suite's calls on a device: weights that rotate, bursts behind a busy GPU, a float64 product beside."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from hw.gemm_lists import ListedGemm
from hw.machine import versions
from hw.pace import seconds_of
from sim.errors import SimctlError

BEYOND_L2 = 3  # so many times the L2 cache is read before a call finds a weight where another was
ALIGNED = 1 << 21  # bytes: where a weight begins, as an allocator of the engine would have it
HOLD = 3.0  # times as long as queueing a burst takes is the GPU kept busy before it
REST = 1.0  # times as long as a burst does it rest after it
GATE_ROWS, GATE_COLUMNS = 5, 257
CALIBRATION_CYCLES = 1_000_000
BURST = ((512, 8), (1104, 4), (2304, 2))  # calls of a burst for rows up to the first number; one above
BURST_S = 1e-3  # and no more calls than take about so long, by a roofline of
ROOF_BYTES_PER_S, ROOF_FLOPS_PER_S = 2.9e12, 600e12


def calls_of(gemm: ListedGemm, rows: int) -> int:
    """Calls of a burst: fewer of those that are long by themselves."""
    most = next((calls for rows_to, calls in BURST if rows <= rows_to), 1)
    size = 2.0 * gemm.k * gemm.n
    return max(1, min(most, int(BURST_S / max(size / ROOF_BYTES_PER_S, size * rows / ROOF_FLOPS_PER_S))))


class Calls:
    """Random weights and activations of the GEMMs on "cuda" or "cpu"; holds device memory until it is dropped.

    The weights of an element type are all cut from one buffer, one after the other: it holds the largest twice, whatever there are.
    """

    def __init__(self, gemms: Iterable[ListedGemm], most_rows: int, device: str, seed: int) -> None:
        """Raises SimctlError where the device does not hold the weights."""
        import torch

        self._torch, self._device, self._on_gpu = torch, device, device == "cuda"
        torch.manual_seed(seed)
        cache = int(torch.cuda.get_device_properties(0).L2_cache_size) if self._on_gpu else 0
        self._buffers: dict[str, Any] = {}
        self._biases: dict[ListedGemm, Any] = {}
        self._inputs: dict[tuple[int, str], Any] = {}
        self._gemms = list(gemms)
        try:
            for dtype in {gemm.dtype for gemm in self._gemms}:
                self._buffers[dtype] = self._drawn(dtype, BEYOND_L2 * cache)
            for gemm in self._gemms:
                drawn = {"device": device, "dtype": getattr(torch, gemm.dtype)}
                if gemm.bias:
                    self._biases[gemm] = torch.randn(gemm.n, **drawn)
                key = (gemm.k, gemm.dtype)
                if key not in self._inputs:
                    self._inputs[key] = torch.randn(most_rows, gemm.k, **drawn)
        except torch.OutOfMemoryError as error:
            raise SimctlError(f"{device} does not hold the weights of these products, name fewer models: {error}") from None
        self._next = dict.fromkeys(self._buffers, 0)
        self._cycles, self.held_s = self._held() if self._on_gpu else (0, 0.0)  # for each call of a burst, and one more

    def _drawn(self, dtype: str, least_bytes: int) -> Any:
        """Random numbers for twice the largest weight of this type, and for so many bytes at least."""
        torch = self._torch
        kind = getattr(torch, dtype)
        step = ALIGNED // kind.itemsize
        largest = max(-(-gemm.k * gemm.n // step) * step for gemm in self._gemms if gemm.dtype == dtype)
        count = max(2 * largest, largest + -(-least_bytes // ALIGNED) * step)
        return torch.randn(count, device=self._device, dtype=kind).mul_(0.02)

    def _weight(self, gemm: ListedGemm) -> Any:
        """The next [n, k] of the buffer."""
        buffer, size = self._buffers[gemm.dtype], gemm.k * gemm.n
        step = ALIGNED // buffer.element_size()
        at = self._next[gemm.dtype]
        at = at if at + size <= buffer.numel() else 0
        self._next[gemm.dtype] = at + -(-size // step) * step
        return buffer.as_strided((gemm.n, gemm.k), (gemm.k, 1), at)

    def _linear(self, gemm: ListedGemm, rows: int, weight: Any) -> Any:
        with self._torch.inference_mode():
            x = self._inputs[gemm.k, gemm.dtype][:rows]
            return self._torch.nn.functional.linear(x, weight, self._biases.get(gemm))

    def call(self, gemm: ListedGemm, rows: int) -> Any:
        """One call, as an engine makes it; the next one takes the next weight."""
        return self._linear(gemm, rows, self._weight(gemm))

    def time_s(self, gemm: ListedGemm, rows: int) -> tuple[float, bool]:
        """(seconds of a call, whether its burst was queued too slowly to say)."""
        if not self._on_gpu:
            self.call(gemm, rows)
            start = time.perf_counter()
            self.call(gemm, rows)
            return time.perf_counter() - start, False
        count, cuda = calls_of(gemm, rows), self._torch.cuda
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self.call(gemm, rows)
        begun = time.perf_counter()
        cuda._sleep(self._cycles * (count + 1))
        first.record()
        for _ in range(count):
            self.call(gemm, rows)
        last.record()
        late = time.perf_counter() - begun > self.held_s * (count + 1)
        last.synchronize()
        seconds = float(first.elapsed_time(last)) * 1e-3 / count
        time.sleep(REST * seconds * (count + 1))
        return seconds, late

    def _held(self) -> tuple[int, float]:
        """(cycles to keep the GPU busy for each call to come, their seconds): HOLD times as long as queueing one takes this host."""
        cuda, gemm = self._torch.cuda, self._gemms[0]
        queueing = []
        for _ in range(20):
            begun = time.perf_counter()
            for _ in range(BURST[0][1]):
                self.call(gemm, 1)
            queueing.append((time.perf_counter() - begun) / BURST[0][1])
            cuda.synchronize()
        # the least of three: a GPU that just woke clocks lower
        one = min(seconds_of(lambda: cuda._sleep(CALIBRATION_CYCLES), "cuda") for _ in range(3)) / CALIBRATION_CYCLES
        cycles = int(HOLD * sorted(queueing)[len(queueing) // 2] / one)
        return cycles, cycles * one

    def error(self, gemm: ListedGemm) -> float:
        """Largest relative error (to the largest value) of some rows and columns against float64."""
        weight, bias = self._weight(gemm), self._biases.get(gemm)
        found = self._linear(gemm, GATE_ROWS, weight)[:, :GATE_COLUMNS].double()
        x = self._inputs[gemm.k, gemm.dtype][:GATE_ROWS].double()
        want = x @ weight[:GATE_COLUMNS].double().T
        if bias is not None:
            want = want + bias[:GATE_COLUMNS].double()
        return float((found - want).abs().max() / want.abs().max())


def described(device: str) -> dict[str, str]:
    """Versions of what chooses the kernels: the libraries a GEMM goes through, and their versions."""
    import torch

    if device != "cuda":
        return {"blas": "mkldnn" if torch.backends.mkldnn.is_available() else "native"}
    return {
        "blas": str(torch.backends.cuda.preferred_blas_library()),
        **versions("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13"),
    }
