"""Profiles of iterations: kernels summed by cell, kinds by name, runs kept and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.artifact import SCHEMA, load, write
from hw.cells import CHUNKS, OFFSETS, Cell
from hw.engines.kernel_trace import KINDS, Event, kind_of, own_times, recorder, since_first
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import profile as suite
from hw.suites.profile import dataset
from sim.errors import SimctlError
from tests.hw.test_grid_runs_are_kept_resumed_and_marked import CELLS, PretendEngine

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured" / "h100"


class PretendProfiler:
    """An iteration: a product for 6 us, attention for 3 from one before its end, nothing for 2, a copy for 1; twice that in `slow` ones."""

    def __init__(self, slow: tuple[int, ...] = ()) -> None:
        self.slow, self.seen = slow, 0

    def __call__(self, step: Any) -> tuple[Any, list[Event]]:
        result, self.seen = step(), self.seen + 1
        f = 2.0 if self.seen in self.slow else 1.0
        spans = (("nvjet_sm90", 0.0, 6.0), ("FlashAttnFwdSm90", 5.0, 8.0), ("Memcpy HtoD", 10.0, 11.0))
        return result, [Event(100 + f * a, 100 + f * b, f * (b - a), name) for name, a, b in spans]


def run(engine: PretendEngine, journal: Journal, budget: Budget, record: Any) -> dict[str, Any]:
    return suite.measure(engine, CELLS, journal, budget, np.random.default_rng(0), "test", record)


def test_kernels_are_summed_by_cell_and_the_file_holds_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    attrs = run(PretendEngine(), journal, Budget(None), PretendProfiler(slow=(2, 4)))
    assert attrs == {"gate_top1_before_after": 1.0, "finished": 1}
    data = load(write(dataset(journal.records, {"schema": SCHEMA, "suite": "profile", **attrs}), tmp_path / "p.nc"), "profile")
    assert dict(data.sizes) == {"cell": 4, "kernel": 3}
    assert data.label.values.tolist() == [c.label for c in CELLS]
    # of a cell's three iterations the one busy for the middle time, whichever was slow
    assert data.busy_us.values.tolist() == [9.0] * 4
    assert data.span_us.values.tolist() == [11.0] * 4
    assert data.busy_us_most.values.tolist() == [18.0, 18.0, 9.0, 9.0]
    by_kind = {kind: data[f"{kind}_us"].values.tolist() for kind in KINDS}
    assert by_kind == {"matmul": [6.0] * 4, "attention": [3.0] * 4, "experts": [0.0] * 4, "copies": [1.0] * 4, "rest": [0.0] * 4}
    assert (data.calls.dtype, data.us.dtype) == (np.int32, np.float32)
    assert data.us.sel(cell=0).values[data.kernel_kind.values == "attention"].tolist() == [3.0]
    assert data.prefill_tokens.values.tolist() == [0, 0, 512, 256]  # what the iteration kept really carried
    assert data.decode_seqs.values.tolist() == [1, 16, 0, 4]


@pytest.mark.parametrize(("failure", "status"), [(RuntimeError("CUDA out of memory"), "oom"), (ValueError("no kernel"), "error")])
def test_a_failing_cell_is_recorded_and_the_next_one_profiled(tmp_path: Path, failure: Exception, status: str) -> None:
    journal = Journal(tmp_path / "j", {})
    run(PretendEngine(fails={16: failure}), journal, Budget(None), PretendProfiler())
    data = dataset(journal.records, {})
    assert data.status.values.tolist() == ["ok", status, "ok", "ok"]
    assert np.isnan(data.busy_us.values[1])
    assert not data.calls.values[1].any()


def test_a_profiler_that_sees_nothing_fails_the_cell(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    run(PretendEngine(), journal, Budget(None), lambda step: (step(), []))
    assert {r["error"] for r in journal.records} == {"SimctlError: the profiler saw no kernel"}
    assert dataset(journal.records, {}).sizes["kernel"] == 0
    with pytest.raises(SimctlError, match="saw no kernel"):
        suite.summed([])


def test_interrupted_then_resumed_profiles_every_cell_once(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(KeyboardInterrupt):
        run(PretendEngine(fails={16: KeyboardInterrupt()}), Journal(path, {"run": 1}), Budget(None), PretendProfiler())
    journal = Journal(path, {"run": 1}, resume=True)
    assert [r["key"] for r in journal.records] == [CELLS[0].label]
    assert run(PretendEngine(), journal, Budget(None), PretendProfiler())["finished"] == 1
    assert [r["key"] for r in journal.records] == [c.label for c in CELLS]


def test_a_spent_budget_is_unfinished(tmp_path: Path) -> None:
    ticks = iter([0.0, 1.0, 1.0, *[50.0] * 50])
    attrs = run(PretendEngine(), Journal(tmp_path / "j", {}), Budget(10.0, clock=lambda: next(ticks)), PretendProfiler())
    assert attrs["finished"] == 0


def test_every_chunk_is_profiled_at_every_offset_and_decodes_come_last() -> None:
    limits = {"token_budget": 8192, "max_context": 131072, "max_seqs": 256}
    cells = suite.cells_of(np.random.default_rng(0), fits=lambda _: True, **limits)
    assert {Cell("prefill", (), ((o, c),)) for o in (0, *OFFSETS) for c in CHUNKS} <= set(cells)
    assert len(cells) == len(set(cells))
    chunks = [bool(c.chunks) for c in cells]
    assert chunks == sorted(chunks, reverse=True)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50), st.sampled_from("abc")), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_busy_is_the_union_of_kernels_in_any_order(spans: list[tuple[float, float, str]], random: Any) -> None:
    events = [Event(s, s + d, d, n) for s, d, n in spans]
    random.shuffle(events)
    found = suite.summed(events)
    ticks = np.arange(0.005, 151, 0.01)
    covered = np.any([(e.start_us <= ticks) & (ticks < e.end_us) for e in events], axis=0).sum() * 0.01
    assert found["busy_us"] == pytest.approx(covered, abs=0.02 * len(events))
    assert found["busy_us"] <= found["span_us"] * (1 + 1e-9)
    assert sum(us for _, us in found["kernels"].values()) == pytest.approx(sum(d for _, d, _ in spans))
    assert sum(n for n, _ in found["kernels"].values()) == len(spans)


def test_operators_inside_operators_keep_what_is_their_own() -> None:
    raw = [(0, 1000, "a", 1), (100, 500, "b", 1), (200, 100, "c", 1), (700, 200, "b", 1), (0, 300, "d", 2), (1000, 50, "e", 1)]
    own = {}
    for event in own_times(raw):
        own[event.name] = own.get(event.name, 0.0) + event.own_us
    assert own == pytest.approx({"a": 0.3, "b": 0.6, "c": 0.1, "d": 0.3, "e": 0.05})


def test_starts_keep_their_nanoseconds() -> None:
    epoch = 1_795_348_407_617_434_123
    events = own_times(since_first([(epoch, 300, "a", 0), (epoch + 101, 99, "b", 0)]))
    assert {e.name: (e.start_us, e.own_us) for e in events} == {"a": (0.0, pytest.approx(0.201)), "b": (pytest.approx(0.101), 0.099)}


def test_operators_of_a_real_call_are_seen() -> None:
    torch = pytest.importorskip("torch")

    record = recorder("cpu")
    left, right = torch.ones(64, 64), torch.ones(64, 64)
    product, events = record(lambda: left @ right)
    assert float(product[0, 0]) == 64.0
    found = suite.summed(events)
    assert found["kernels"]["aten::mm"][0] == 1
    assert sum(us for _, us in found["kernels"].values()) <= found["span_us"] * 1.001


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_64x64_64x13_2x1_v_bz_splitK_TNT", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "matmul"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<", "attention"),
        ("void flash::prepare_varlen_num_blocks_kernel<1, false>(int)", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "rest"),
        ("_C::cpu_attn_reshape_and_cache", "rest"),
        ("fused_moe_kernel", "experts"),
        ("void vllm::moe::topkGating<8, 128>", "experts"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("triton_red_fused_fused_add_rms_norm_moe_forward_0", "rest"),
    ],
)
def test_kinds_are_told_by_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_shares_of_a_packaged_profile_are_its_kernels() -> None:
    for path in sorted(MEASURED.glob("profile_*.nc")):
        data = load(path, "profile")
        kinds = data.kernel_kind.values.astype(str)
        for kind in KINDS:
            np.testing.assert_allclose(data[f"{kind}_us"].values, data.us.values[:, kinds == kind].sum(axis=1), rtol=1e-5, atol=1e-2)
        assert (data.busy_us <= data.span_us).all()
        assert path.stat().st_size < 300_000
