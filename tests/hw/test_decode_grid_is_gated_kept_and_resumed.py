"""The decode suite over a pretend step: costs come back, gates decide, a failing cell is recorded, an interrupted run goes on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw.artifact import SCHEMA, load, write
from hw.engines.shapes import shape
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import decode
from sim.errors import UsageError

CELLS = [
    decode.DecodeCell(1, 8192, ("dense", "sparse"), 8),
    decode.DecodeCell(8, 8192, ("sparse",), 32),
    decode.DecodeCell(1, 4096, ("tiered",), 8),
]


@dataclass
class PretendStep:
    """5 ms and 1 us a cached token (dense) or a kept one."""

    batch: int
    context: int
    modes: tuple[str, ...]
    k_blocks: int
    block: int = 128
    weight_bytes: int = 15_000_000_000

    @property
    def kv_bytes(self) -> int:
        return self.batch * self.context * 1000

    @property
    def keep_bytes(self) -> int:
        return self.batch * self.k_blocks * self.block * 1000

    def time_s(self, mode: str, repeats: int) -> np.ndarray:
        assert mode in self.modes
        tokens = self.context if mode == "dense" else self.k_blocks * self.block
        return np.full(repeats, 5e-3 + 1e-6 * self.batch * tokens)


def opener(fails: dict[tuple[int, int], BaseException] | None = None) -> Any:
    def open_step(batch: int, context: int, *, modes: tuple[str, ...], k_blocks: int) -> PretendStep:
        if failure := (fails or {}).get((batch, context)):
            raise failure
        return PretendStep(batch, context, modes, k_blocks)

    return open_step


def run(open_step: Any, journal: Journal, error: float = 0.01) -> dict[str, Any]:
    return decode.measure(open_step, lambda step, mode: error, CELLS, journal, Budget(None), "test")


def test_medians_and_bytes_by_mode(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    attrs = run(opener(), journal)
    assert (attrs["gate_passed"], attrs["finished"]) == (1, 1)
    path = write(decode.dataset(journal.records, {"schema": SCHEMA, "suite": "decode", **attrs}), tmp_path / "d.nc")
    data = load(path, "decode")
    rows = {
        (str(m), int(b), int(k)): i
        for i, (m, b, k) in enumerate(zip(data["mode"].values, data.batch.values, data.k_blocks.values, strict=True))
    }
    assert float(data.step_s_median[rows["dense", 1, 0]]) == pytest.approx(5e-3 + 8192e-6, rel=1e-7)  # kept as float32
    assert float(data.step_s_median[rows["sparse", 8, 32]]) == pytest.approx(5e-3 + 8 * 4096e-6, rel=1e-7)
    assert float(data.keep_bytes[rows["dense", 1, 0]]) == 0.0
    assert float(data.keep_bytes[rows["tiered", 1, 8]]) == 8 * 128 * 1000
    assert set(data.step_s_n.values.tolist()) == {decode.ROUNDS * decode.SAMPLES}


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_wrong_or_undefined_gate_is_marked(tmp_path: Path, error: float) -> None:
    assert run(opener(), Journal(tmp_path / "j", {}), error)["gate_passed"] == 0


@pytest.mark.parametrize(("failure", "status"), [(RuntimeError("CUDA out of memory. Tried"), "oom"), (ValueError("no"), "error")])
def test_a_failing_cell_is_recorded_and_the_sweep_goes_on(tmp_path: Path, failure: Exception, status: str) -> None:
    journal = Journal(tmp_path / "j", {})
    attrs = run(opener({(8, 8192): failure}), journal)
    data = decode.dataset(journal.records, attrs)
    assert data.status.values.astype(str).tolist() == ["ok", "ok", status, "ok"]
    assert np.isnan(data.step_s_median.values[2])
    assert attrs["finished"] == 1


def test_interrupted_then_resumed_gives_every_cell_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(opener({(8, 8192): KeyboardInterrupt()}), Journal(tmp_path / "j", {}))
    journal = Journal(tmp_path / "j", {}, resume=True)
    assert [r["key"] for r in journal.records] == [CELLS[0].key]
    run(opener(), journal)
    assert [r["key"] for r in journal.records] == [c.key for c in CELLS]


def test_the_grid_names_no_cell_twice_and_begins_with_every_k() -> None:
    cells = decode.grid()
    assert len({c.key for c in cells}) == len(cells)
    assert {(c.batch, c.k_blocks) for c in cells[:9]} == {(b, k) for b in (1, 8) for k in (8, 16, 32)}
    assert {mode for c in cells for mode in c.modes} == {"dense", "sparse", "tiered"}


@pytest.mark.parametrize(
    ("name", "field", "value"), [("qwen2.5-7b", "qkv_bias", True), ("qwen3-14b", "qk_norm", True), ("llama3.1-8b", "eps", 1e-5)]
)
def test_shapes_become_those_of_the_kernels(name: str, field: str, value: object) -> None:
    fields = decode.kernel_shape(shape(name))
    assert fields[field] == value
    assert fields["heads_kv"] == shape(name)["num_key_value_heads"]


@pytest.mark.parametrize("name", ["gemma3-4b", "qwen3-coder-30b-a3b"])
def test_what_the_step_cannot_run_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="runs dense decoders with full attention, not"):
        decode.kernel_shape(shape(name))
