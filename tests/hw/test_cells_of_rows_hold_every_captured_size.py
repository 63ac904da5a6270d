"""The cells of rows.cells.json: 8 decodes beside a chunk at every captured size above 256 and beyond, some sizes as a chunk alone."""

from importlib.resources import files
from pathlib import Path

from hw.cell_file import read_cells
from hw.cells import within
from sim.bill import CAPTURED, captured_padding

FILE = Path(str(files("scenarios") / "data" / "measured" / "h100" / "rows.cells.json"))


def test_rows_are_those_of_graphs_and_beyond() -> None:
    _, cells = read_cells(FILE)
    mixed = [cell for cell in cells if cell.kind == "mixed"]
    rows = [cell.new_tokens for cell in mixed]
    assert rows == sorted(set(rows))
    assert {size for size in CAPTURED if size > 256} | set(range(528, 705, 16)) <= set(rows)
    assert max(rows) == 960
    assert all(captured_padding(float(row)) == 0 for row in rows)
    assert {cell.contexts for cell in mixed} == {(1024,) * 8}
    assert {len(cell.chunks) for cell in cells} == {1}


def test_a_third_of_them_is_a_chunk_alone() -> None:
    _, cells = read_cells(FILE)
    rows = {kind: {cell.new_tokens for cell in cells if cell.kind == kind} for kind in ("mixed", "prefill")}
    assert rows["prefill"] < rows["mixed"]
    assert 3 * len(rows["prefill"]) <= len(rows["mixed"]) < 4 * len(rows["prefill"])
    assert {400, 448, 544} <= rows["prefill"]  # where served iterations took longest over their price


def test_an_engine_of_our_limits_takes_all_of_them() -> None:
    _, cells = read_cells(FILE)
    assert within(cells, 8192, lambda _: True, 131072, 256) == cells
