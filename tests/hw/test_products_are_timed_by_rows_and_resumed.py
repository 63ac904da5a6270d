"""The products suite: medians by rows come back, late bursts do not count, a failing point is recorded, an interrupted run goes on."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.artifact import SCHEMA, load, write
from hw.engines.shapes import SHAPES
from hw.gemm_lists import ListedGemm
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import products, products_device
from hw.suites.products import Point
from sim.cost.graphs import CAPTURED
from sim.errors import UsageError
from tests.cli import run as simctl

torch = pytest.importorskip("torch")

SMALL, WIDE = ListedGemm(64, 96, False, "bfloat16"), ListedGemm(64, 480, True, "bfloat16")
USES = {SMALL: "a o", WIDE: "a qkv, b qkv"}
ODD = products.ODD[9]
POINTS = [(product, rows) for product in USES for rows in (1, 8, 448, 464)]


@dataclass
class PretendDevice:
    """A microsecond a row and result column, half as much again at 448 rows; what is in `late` is so the first time it is met."""

    late: set[Point] = field(default_factory=set)
    fails: dict[Point, BaseException] = field(default_factory=dict)
    met: Counter[Point] = field(default_factory=Counter)

    def time_s(self, product: ListedGemm, rows: int) -> tuple[float, bool]:
        self.met[product, rows] += 1
        if failure := self.fails.get((product, rows)):
            raise failure
        late = (product, rows) in self.late and self.met[product, rows] == 1
        return (9.0 if late else cost(product, rows)), late

    def error(self, product: ListedGemm) -> float:
        return 1e-3 * product.n / 96


def cost(product: ListedGemm, rows: int) -> float:
    return 1e-6 * rows * product.n * (1.5 if rows == 448 else 1.0)


def measure(device: PretendDevice, journal: Journal, budget: Budget | None = None) -> dict[str, Any]:
    return products.measure(device, POINTS, journal, budget or Budget(None), 0, "test")


def written(journal: Journal, attrs: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(products, "points_of", lambda uses, device: POINTS)
    start = {"key": "points", "uses": [[*product, layers] for product, layers in USES.items()], "device": "cuda"}
    attrs = {"schema": SCHEMA, "suite": "products", "finished": 0} | attrs
    return load(write(products.dataset([start, *journal.records], attrs), folder / "p.nc"), "products")


def test_medians_come_back_by_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j", {})
    attrs = measure(PretendDevice(), journal)
    data = written(journal, attrs, tmp_path, monkeypatch)
    assert data.sizes == {"point": len(POINTS), "visit": products.PASSES}
    np.testing.assert_allclose(data.time_s_median, [cost(*point) for point in POINTS], rtol=1e-6)
    assert data.time_s_n.values.tolist() == [products.PASSES] * len(POINTS)
    assert data.layers.values.astype(str)[-1] == "a qkv, b qkv"
    assert (data.attrs["finished"], data.attrs["gate_passed"]) == (1, 1)
    assert data.attrs["gate_error"] == pytest.approx(5e-3)


def test_a_burst_queued_too_slowly_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j", {})
    data = written(journal, measure(PretendDevice(late={POINTS[2]}), journal), tmp_path, monkeypatch)
    assert data.late_n.values.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert data.time_s_n.values[2] == products.PASSES - 1
    assert float(data.time_s_median[2]) == pytest.approx(cost(*POINTS[2]), rel=1e-6)
    assert np.isnan(data.time_s.values).sum() == 1
    assert data.attrs["samples_late"] == 1


@pytest.mark.parametrize(("failure", "status"), [(RuntimeError("CUDA out of memory. Tried"), "oom"), (ValueError("no"), "error")])
def test_a_failing_point_is_recorded_once_and_the_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, status: str
) -> None:
    journal, device = Journal(tmp_path / "j", {}), PretendDevice(fails={POINTS[1]: failure})
    data = written(journal, measure(device, journal), tmp_path, monkeypatch)
    assert device.met[POINTS[1]] == 1
    assert data.status.values.astype(str).tolist() == ["ok", status, *["ok"] * 6]
    assert str(failure) in str(data.error.values[1])
    assert math.isnan(data.time_s_median[1])
    assert data.attrs["points_ok"] == 7


def test_interrupted_then_resumed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PART", 3)
    device = PretendDevice()
    measure(device, Journal(tmp_path / "whole", {}))
    once = device.met.total()
    device = PretendDevice(fails={POINTS[5]: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        measure(device, Journal(tmp_path / "j", {}))
    kept = sum(len(r["samples"]) for r in Journal(tmp_path / "j", {}, resume=True).records)
    device = PretendDevice()
    journal = Journal(tmp_path / "j", {}, resume=True)
    assert measure(device, journal)["finished"] == 1
    assert kept + device.met.total() == once == len(POINTS) * products.PASSES
    assert written(journal, {}, tmp_path, monkeypatch).time_s_n.values.tolist() == [products.PASSES] * len(POINTS)


@pytest.mark.parametrize(("passes", "finished"), [(1, 0), (2, 0), (3, 1)])
def test_a_budget_ends_the_passes_and_three_make_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int, finished: int
) -> None:
    device, journal = PretendDevice(), Journal(tmp_path / "j", {})
    budget = Budget(10.0, clock=lambda: 100.0 * (device.met.total() >= passes * len(POINTS)))
    assert measure(device, journal, budget)["finished"] == finished
    data = written(journal, {}, tmp_path, monkeypatch)
    assert np.isfinite(data.time_s.values).any(axis=0).sum() == passes


def test_layers_are_fused_as_the_engine_fuses_them() -> None:
    """Sizes of the kernels' own weights, by the model cards: heads, KV heads and their size; gate and up side by side."""
    sizes = {
        model: {name: (p.k, p.n, p.bias) for name, p in products.layers_of(SHAPES[model]).items()}
        for model in ("qwen2.5-7b", "llama3.1-8b", "qwen3-coder-30b-a3b")
    }
    assert sizes["qwen2.5-7b"] == {
        "qkv": (3584, 28 * 128 + 2 * 4 * 128, True),
        "o": (3584, 3584, False),
        "gate_up": (3584, 2 * 18944, False),
        "down": (18944, 3584, False),
    }
    assert sizes["llama3.1-8b"]["qkv"] == (4096, 6144, False)
    assert sizes["qwen3-coder-30b-a3b"] == {"qkv": (2048, 5120, False), "o": (4096, 2048, False)}
    with pytest.raises(UsageError, match="knows no layers of 'mamba'"):
        products.layers_of({**SHAPES["llama3.1-8b"], "model_type": "mamba"})


def test_a_product_of_two_models_is_measured_once() -> None:
    both = products.gemms_of({name: SHAPES[name] for name in ("llama3.1-8b", "mistral-7b")})
    assert next(iter(both.values())) == "llama3.1-8b qkv, mistral-7b qkv"
    assert len(both) == 4


def test_rows_hold_every_captured_size_and_go_far_beyond() -> None:
    rows = [r for _, r in products.points_of([SMALL], "cuda")]
    assert rows == sorted(set(rows))
    assert set(CAPTURED) <= set(rows)
    assert set(range(528, 1105, 16)) | {2304, 8192} <= set(rows)
    assert sum(row % 2 for row in rows) >= 8
    assert max(r for _, r in products.points_of([SMALL], "cpu")) == 64


class PretendCuda:
    """A clock in place of a GPU: sleeping takes a microsecond a cycle, and the host a given time for every call."""

    def __init__(self) -> None:
        self.gpu_s = self.host_s = 0.0
        self.asleep: list[int] = []

    def _sleep(self, cycles: int) -> None:
        self.asleep.append(cycles)
        self.gpu_s += cycles * 1e-6

    def synchronize(self) -> None:
        pass

    def Event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.gpu_s)
        event.elapsed_time = lambda last: (last.at - event.at) * 1e3
        return event


def pretended(monkeypatch: pytest.MonkeyPatch) -> tuple[products_device.Calls, PretendCuda, list[float]]:
    """Calls whose GPU takes 2 ms each, 3 of them held per call, and whose host takes what the list says."""
    calls, cuda, host = products_device.Calls([SMALL], 16, "cpu", 0), PretendCuda(), [1e-5]

    def one(product: ListedGemm, rows: int) -> None:
        cuda.host_s += host[0]
        cuda.gpu_s += 2e-3

    monkeypatch.setattr(calls, "call", one)
    monkeypatch.setattr(calls, "_torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(calls, "_on_gpu", True)
    clock = SimpleNamespace(perf_counter=lambda: cuda.host_s, sleep=lambda s: None)
    monkeypatch.setattr(products_device, "time", clock)

    def seconds_of(work: Callable[[], None], device: str) -> float:
        before = cuda.gpu_s
        work()
        return cuda.gpu_s - before

    monkeypatch.setattr(products_device, "seconds_of", seconds_of)
    return calls, cuda, host


def test_a_gpu_is_kept_busy_while_a_burst_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, cuda, host = pretended(monkeypatch)
    calls._cycles, calls.held_s = calls._held()
    assert calls.held_s == pytest.approx(products_device.HOLD * 1e-5, rel=1e-6)
    seconds, late = calls.time_s(SMALL, 8)
    assert (seconds, late) == (pytest.approx(2e-3), False)
    assert cuda.asleep[-1] == calls._cycles * 9
    host[0] = 1e-4
    assert calls.time_s(SMALL, 8) == (pytest.approx(2e-3), True)


def test_every_call_reads_a_weight_of_its_own_until_the_buffer_is_through() -> None:
    """Products share the buffer, none reads where the one before it did, and where the buffer ends it begins anew."""
    calls = products_device.Calls([WIDE, SMALL], 16, "cpu", 0)
    places = [calls._weight(product).data_ptr() for product in (WIDE, SMALL, WIDE, SMALL)]
    assert places[0] != places[1]
    assert places[:2] == places[2:]
    assert not torch.equal(calls.call(WIDE, 3), calls.call(WIDE, 3))
    assert calls._weight(SMALL).shape == (SMALL.n, SMALL.k)


def test_a_buffer_holds_the_largest_weight_twice_and_what_a_cache_must_forget() -> None:
    large = ListedGemm(1024, 2048, False, "bfloat16")  # twice the step that weights begin at
    calls = products_device.Calls([SMALL, large], 1, "cpu", 0)
    assert calls._buffers["bfloat16"].numel() == 2 * large.k * large.n
    assert calls._drawn("bfloat16", 40 << 20).nbytes >= (40 << 20) + 2 * large.k * large.n
    first = calls._weight(large).data_ptr()
    assert calls._weight(large).data_ptr() - first == 2 * large.k * large.n
    assert calls._weight(large).data_ptr() == first


def test_the_gate_compares_with_the_bias_and_tells_when_none_was_added() -> None:
    calls = products_device.Calls([WIDE], 16, "cpu", 0)
    assert all(calls.error(WIDE) < products.GATE_BOUND for _ in range(3))
    linear = torch.nn.functional.linear
    calls._linear = lambda product, rows, weight: linear(calls._inputs[WIDE.k, WIDE.dtype][:rows], weight)  # type: ignore[method-assign]
    assert calls.error(WIDE) > products.GATE_BOUND


def test_long_calls_make_short_bursts() -> None:
    huge = ListedGemm(53248, 16384, False, "bfloat16")
    assert [products_device.calls_of(SMALL, rows) for rows in (8, 1000, 2000, 8192)] == [8, 4, 2, 1]
    assert [products_device.calls_of(huge, rows) for rows in (1, 512, 8192)] == [1, 1, 1]
    wide = ListedGemm(5120, 34816, False, "bfloat16")
    assert products_device.calls_of(wide, 8) == 8


def test_rows_that_most_iterations_have_are_measured_three_times_before_others_once(tmp_path: Path) -> None:
    points = [(SMALL, rows) for rows in (8, 512, 520, ODD, 8192)]
    device, journal = PretendDevice(), Journal(tmp_path / "j", {})
    budget = Budget(10.0, clock=lambda: 100.0 * (device.met.total() >= 9))
    assert products.measure(device, points, journal, budget, 0, "test")["finished"] == 0
    assert device.met == {(SMALL, 8): 3, (SMALL, 512): 3, (SMALL, ODD): 3}
    assert products.measure(device, points, journal, Budget(None), 0, "test")["finished"] == 1
    assert set(device.met.values()) == {products.PASSES}


def test_the_command_measures_a_small_model_on_this_cpu(tmp_path: Path) -> None:
    done = simctl("measure", "--hw", "cpu", "--suite", "products", "--model", "tiny-25m", "-o", str(tmp_path))
    assert done.code == 0, done.stderr
    data = load(tmp_path / "products_tiny-25m.nc", "products")
    expected = products.points_of(products.gemms_of({"tiny-25m": SHAPES["tiny-25m"]}), "cpu")
    assert list(zip(data.k.values, data.n.values, data.rows.values, strict=True)) == [(p.k, p.n, r) for p, r in expected]
    assert (data.time_s_median.values > 0).all()
    assert (data.attrs["gate_passed"], data.attrs["finished"]) == (1, 1)


def test_quantised_and_unknown_models_are_refused(tmp_path: Path) -> None:
    for more, says in ((("--quantization", "fp8"), "takes no --tp and no --quantization"), (("--model", "llama9"), "unknown model shape")):
        result = simctl("measure", "--hw", "cpu", "--suite", "products", *more, "-o", str(tmp_path))
        assert result.code == 2
        assert says in result.stderr
