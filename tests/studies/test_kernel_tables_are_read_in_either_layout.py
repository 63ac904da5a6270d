"""Kernel tables are read in a package's own layout and flattened, the newest version of each; damaged ones are one line."""

import csv

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from studies.kernel_tables.__main__ import main
from studies.kernel_tables.latency_tables import read_tables

GEMM = {"gemm_dtype": ["bfloat16"] * 3, "m": [1, 64, 4096], "n": [4096] * 3, "k": [4096] * 3, "latency": [0.02, 0.03, 0.9]}


def nested(folder, version="0.24.0", columns=GEMM, system="l40s", engine="vllm"):
    path = folder / system / "gemm" / engine / version / "gemm_perf.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_nested_flattened_and_csv_tables_hold_the_same_rows(tmp_path):
    nested(tmp_path / "a")
    (tmp_path / "b" / "l40s").mkdir(parents=True)
    parquet.write_table(pyarrow.table(GEMM), tmp_path / "b" / "l40s" / "gemm__gemm_perf__vllm-0.24.0.parquet")
    (tmp_path / "c" / "l40s").mkdir(parents=True)
    with open(tmp_path / "c" / "l40s" / "gemm__gemm_perf__vllm-0.24.0.csv", "w", newline="") as file:
        csv.writer(file).writerows([GEMM.keys(), *zip(*GEMM.values(), strict=True)])
    for name in "abc":
        (table,) = read_tables(tmp_path / name)
        assert (table.gpu.name, table.name, table.version) == ("L40S", "gemm_perf", "0.24.0")
        assert np.array_equal(table.number("latency"), GEMM["latency"])
        assert table.text("gemm_dtype").tolist() == GEMM["gemm_dtype"]


def test_the_newest_version_wins_and_other_engines_are_left_out(tmp_path):
    nested(tmp_path, "0.9.2")
    nested(tmp_path, "0.24.0", {**GEMM, "latency": [1.0, 2.0, 3.0]})
    nested(tmp_path, "99.0", engine="trtllm")
    (table,) = read_tables(tmp_path)
    assert table.version == "0.24.0"
    assert table.number("latency")[0] == 1.0


def test_rows_without_a_time_are_left_out(tmp_path):
    nested(tmp_path, columns={**GEMM, "latency": [0.0, float("nan"), 0.9]})
    (table,) = read_tables(tmp_path)
    assert table.number("m").tolist() == [4096.0]


def test_an_unknown_system_is_a_users_own_gpu(tmp_path):
    nested(tmp_path, system="my_card")
    with pytest.raises(UsageError, match="unknown GPU 'my_card'"):
        read_tables(tmp_path)
    (table,) = read_tables(tmp_path, get_gpu("L4"))
    assert table.gpu.name == "L4"


@pytest.mark.parametrize(("text", "said"), [(None, "no folder"), ("", "no kernel tables"), ("not parquet", "not readable as parquet")])
def test_bad_folders_and_files_are_one_line(tmp_path, capsys, text, said):
    folder = tmp_path / "tables"
    if text is not None:
        folder.mkdir()
    if text:
        nested(folder).write_text(text)
    assert main([str(folder)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.strip().splitlines()) <= 2
    assert not printed.out


def test_errors_are_printed_by_operation_and_others_are_named(tmp_path, capsys):
    nested(tmp_path)
    other = tmp_path / "l40s" / "kda" / "vllm" / "0.24.0" / "kda_perf.parquet"
    other.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"latency": [1.0]}), other)
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert [line for line in lines if line.startswith("L40S  GEMM")][-1].split()[2:6] == ["bfloat16", ">", "1K", "rows"]
    assert "No term of the formula: kda_perf." in printed
    assert max(map(len, lines)) <= 80
