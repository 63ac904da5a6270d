"""The grid over a pretend engine: warm-up by rule, failures recorded, a cut run kept, a resumed run complete, drift and control seen."""

import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw.artifact import SCHEMA, load, write
from hw.cells import Cell, engine_grid, weight_axis
from hw.engines.composition import composition
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import engine_grid as suite
from hw.suites.engine_grid_table import dataset
from sim.errors import UsageError


@dataclass
class Step:
    step_s: float
    model_s: float
    counts: dict[str, int]


@dataclass
class PretendEngine:
    """Costs 5 ms a step, 1 us a token of context, 10 us a prefill token; slow for its first steps; `fails` on some batches."""

    fails: dict[int, Exception] = field(default_factory=dict)
    placed: list[int] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0

    def fits(self, cell: Cell) -> bool:
        return sum(cell.contexts) <= 200_000

    def place(self, cell: Cell, rng: np.random.Generator, output_tokens: int) -> None:
        if len(cell.contexts) in self.fails:
            raise self.fails[len(cell.contexts)]
        self.placed = list(cell.contexts)

    def add(self, prompt: list[int], *, output_tokens: int) -> None:
        self.placed.append(len(prompt))

    def add_chunks(self, cell: Cell, rng: np.random.Generator) -> None:
        self.chunks = list(cell.chunks)

    def step(self) -> tuple[Step, list[Any]]:
        work = [(1, c) for c in self.placed] + [(n, o) for o, n in self.chunks]
        counts = composition(work)
        self.steps += 1
        cost = 5e-3 + 1e-6 * counts["decode_context_tokens"] + 1e-5 * counts["prefill_tokens"] + (0.5 if self.steps < 4 else 0.0)
        self.placed, self.chunks = [c + 1 for c in self.placed], []
        return Step(cost, 0.9 * cost, counts), []

    def drain(self) -> None:
        self.placed, self.chunks = [], []

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        return list(range(tokens))


CELLS = [Cell("decode", (128,)), Cell("decode", (2048,) * 16), Cell("prefill", (), ((0, 512),)), Cell("mixed", (64,) * 4, ((128, 256),))]


def run(engine: PretendEngine, journal: Journal, budget: Budget) -> dict[str, Any]:
    return suite.measure(engine, CELLS, journal, budget, np.random.default_rng(0), "test")


def test_medians_are_of_counted_target_iterations(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {"run": 1})
    attrs = run(PretendEngine(), journal, Budget(None))
    data = dataset(journal.records, attrs)
    assert attrs == {"gate_top1_before_after": 1.0, "finished": 1}
    by_label = {(str(k), str(r)): v for k, r, v in zip(data.label.values, data.role.values, data.step_s_median.values, strict=True)}
    # 20 counted steps after 3 warm ones: the context attended to grows from 128 + 4 to 128 + 23, median 141.5
    assert by_label["decode:1x128", "grid"] == pytest.approx(5e-3 + 141.5e-6, rel=1e-12)
    assert by_label["prefill:0+1x512@0", "grid"] == pytest.approx(5e-3 + 5.12e-3, rel=1e-12)
    assert data.attrs["drift_again_over_first"] == pytest.approx(1.0)
    mixed = data.cell_index.values == list(data.kind.values.astype(str)).index("mixed")
    assert data.target.values[mixed].sum() == suite.VISITS * (1 + suite.CHUNK_REPEATS[1])
    assert (data.prefill_seqs.values[mixed] == data.target.values[mixed]).all()
    path = write(data.assign_attrs(schema=SCHEMA, suite="engine-grid"), tmp_path / "grid.nc")
    assert load(path, "engine-grid").sizes == data.sizes


@pytest.mark.parametrize(
    ("failure", "status"), [(RuntimeError("CUDA out of memory. Tried to allocate"), "oom"), (ValueError("no kernel"), "error")]
)
def test_a_failing_cell_is_recorded_and_the_sweep_goes_on(tmp_path: Path, failure: Exception, status: str) -> None:
    journal = Journal(tmp_path / "j", {"run": 1})
    run(PretendEngine(fails={16: failure}), journal, Budget(None))
    data = dataset(journal.records, {})
    grid = data.status.values[data.role.values.astype(str) == "grid"].astype(str).tolist()
    assert grid == ["ok", status, "ok", "ok"]
    assert np.isnan(data.step_s_median.values[data.status.values.astype(str) == status]).all()


def test_interrupted_then_resumed_gives_every_cell_once(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(KeyboardInterrupt):
        run(PretendEngine(fails={16: KeyboardInterrupt()}), Journal(path, {"run": 1}), Budget(None))
    assert "grid decode:1x128" in Journal(path, {"run": 1}, resume=True)
    journal = Journal(path, {"run": 1}, resume=True)
    run(PretendEngine(), journal, Budget(None))
    keys = [r["key"] for r in journal.records]
    assert len(keys) == len(set(keys))
    assert {f"grid {c.label}{visit}" for c in CELLS for visit in ("", " visit 2", " visit 3")} <= set(keys)


@dataclass
class StutteringEngine(PretendEngine):
    """A third slower while the host has something else to do: from one step to another, longer than a visit lasts."""

    slow: range = range(4, 60)

    def step(self) -> tuple[Step, list[Any]]:
        done, nothing = super().step()
        factor = 4 / 3 if self.steps in self.slow else 1.0
        return Step(factor * done.step_s, factor * done.model_s, done.counts), nothing


def test_a_host_that_is_slow_for_some_seconds_does_not_move_a_cell_but_widens_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    run(StutteringEngine(), journal, Budget(None))
    data = dataset(journal.records, {})
    grid = data.isel(cell=data.role.values.astype(str) == "grid")
    alone = grid.isel(cell=0)  # met in its first visit alone
    assert alone.visits == suite.VISITS
    assert alone.step_s_median == pytest.approx(5e-3 + 141.5e-6, rel=1e-12)
    assert alone.step_s_visits_sd == pytest.approx(np.std([np.log(4 / 3)] + [0] * (suite.VISITS - 1), ddof=1), rel=1e-9)
    quiet = grid.isel(cell=[str(label) == "mixed:4x64+1x256@128" for label in grid.label.values])
    assert quiet.step_s_visits_sd.values == pytest.approx([0.0], abs=1e-9)


def test_later_visits_go_another_way_round(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    cells = [Cell("decode", (n,)) for n in range(100, 112)]
    suite.measure(PretendEngine(), cells, journal, Budget(None), np.random.default_rng(0), "test")
    orders = {tuple(r["cell"]["contexts"][0] for r in journal.records if r["key"].endswith(f"visit {v}")) for v in (2, 3)}
    assert len(orders) == 2
    assert all(sorted(order) == list(range(100, 112)) and order != tuple(range(100, 112)) for order in orders)


def test_a_cell_that_fails_in_one_visit_keeps_the_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})

    class Failing(PretendEngine):
        seen = 0

        def place(self, cell: Cell, rng: np.random.Generator, output_tokens: int) -> None:
            if len(cell.contexts) == 16:
                self.seen += 1
                if self.seen == 1:
                    raise RuntimeError("CUDA out of memory. Tried to allocate")
            super().place(cell, rng, output_tokens)

    run(Failing(), journal, Budget(None))
    data = dataset(journal.records, {})
    row = data.isel(cell=int(np.flatnonzero((data.batch.values == 16) & (data.role.values.astype(str) == "grid"))[0]))
    assert (str(row.status.values), int(row.visits)) == ("ok", suite.VISITS - 1)


def test_out_of_budget_is_marked_unfinished(tmp_path: Path) -> None:
    ticks = iter([0.0, 1.0, 1.0, *[50.0] * 50])
    attrs = run(PretendEngine(), Journal(tmp_path / "j", {}), Budget(10.0, clock=lambda: next(ticks)))
    assert attrs["finished"] == 0


def test_a_run_that_stops_just_before_its_budget_is_unfinished_and_one_that_ends_just_after_it_is_not(tmp_path: Path) -> None:
    stopped = run(PretendEngine(), Journal(tmp_path / "a", {}), Budget(10.0, clock=iter([0.0] + [7.5] * 1000).__next__))
    assert stopped["finished"] == 0
    journal = Journal(tmp_path / "b", {})
    late = Budget(10.0, clock=lambda: 11.0 if any(r["role"] == "again" for r in journal.records) else 0.0)
    assert run(PretendEngine(), journal, late)["finished"] == 1
    assert late.over()


def test_checks_are_made_of_cells_that_the_run_has(tmp_path: Path) -> None:
    """An anchor or a control without its twin in the grid compares nothing, and may be beyond the engine's limits."""
    asked = [Cell("decode", (300,) * 2), Cell("decode", (600,) * 4)]
    journal = Journal(tmp_path / "j", {})
    attrs = suite.measure(PretendEngine(), asked, journal, Budget(None), np.random.default_rng(0), "test")
    assert [r["key"] for r in journal.records if not r["key"].startswith("warm") and " visit " not in r["key"]] == [
        "grid decode:2x300", "grid decode:4x600", "again decode:2x300",
    ]  # fmt: skip
    assert dataset(journal.records, attrs).attrs["drift_again_over_first"] == pytest.approx(1.0, abs=0.01)


def test_collections_wait_until_a_cell_is_done(tmp_path: Path) -> None:
    seen = []

    class Watching(PretendEngine):
        def step(self) -> tuple[Step, list[Any]]:
            seen.append(gc.isenabled())
            return super().step()

    run(Watching(fails={16: ValueError("no kernel")}), Journal(tmp_path / "j", {}), Budget(None))
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_a_journal_cut_mid_line_loses_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, {"run": 1})
    journal.add("a", value=1)
    journal.add("b", value=2)
    path.write_text(path.read_text()[:-9])
    assert [r["key"] for r in Journal(path, {"run": 1}, resume=True).records] == ["a"]
    with pytest.raises(UsageError, match="holds another run"):
        Journal(path, {"run": 2}, resume=True)


def test_a_disk_that_fills_during_the_run_keeps_the_cells_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    journal = Journal(path, {"run": 1})
    journal.add("a", value=1)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        journal.add("b", value=2)
    monkeypatch.undo()
    assert [r["key"] for r in journal.records] == ["a"]
    assert Journal(path, {"run": 1}, resume=True).records[0] == {"key": "a", "value": 1}


def test_a_run_refused_before_its_first_cell_leaves_no_file(tmp_path: Path) -> None:
    Journal(tmp_path / "j", {"run": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import xarray as xr

    target = tmp_path / "x.nc"
    write(xr.Dataset({"a": ("cell", [1.0])}), target)
    before = target.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write(xr.Dataset({"a": ("cell", [2.0])}), target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.nc"]


def test_every_cell_asked_for_is_within_the_engine() -> None:
    limits = {"token_budget": 8192, "max_context": 131072, "max_seqs": 256}
    small = engine_grid(np.random.default_rng(0), fits=lambda c: sum(c.contexts) < 100_000, **limits)
    assert all(sum(c.contexts) < 100_000 and c.new_tokens <= 8192 and len(c.contexts) <= 256 for c in small)
    assert len({c.label for c in small}) == len(small)
    assert [c.priority for c in small] == sorted(c.priority for c in small)
    whole, (control, anchors) = engine_grid(np.random.default_rng(0), fits=lambda c: True, **limits), suite.checks()
    assert all(
        cell in whole for cell in (control, *anchors)
    )  # whatever their place in the order: what to measure first is not what they are
    ladder = weight_axis(fits=lambda c: True, **limits)
    assert {c.contexts[0] for c in ladder} == {2048, 8192, 32000}
    assert [c.contexts for c in ladder[:3]] == [(2048,), (8192,), (32000,)]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ([(1, 100), (1, 7)], {"decode_seqs": 2, "decode_context_tokens": 109, "prefill_seqs": 0}),
        ([(4, 0)], {"prefill_seqs": 1, "prefill_tokens": 4, "prefill_pairs": 1 + 2 + 3 + 4}),
        ([(3, 10), (1, 0)], {"decode_seqs": 1, "prefill_pairs": 11 + 12 + 13, "prefill_context_tokens": 10}),
    ],
)
def test_composition_counts(work: list[tuple[int, int]], expected: dict[str, int]) -> None:
    counts = composition(work)
    assert {k: counts[k] for k in expected} == expected
