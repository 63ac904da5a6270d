"""Kernel tables are read in a package's own layout and flattened, the newest version of each; damaged ones are one line."""

import csv
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sim.cost.mixer_work import INDEX_KERNELS
from sim.cost.traffic import traffic
from sim.errors import UsageError
from sim.rates.posterior import rates_for
from sim.specs.gpus import get_gpu
from sim.specs.model import Attention, LayerGroup, ModelSpec, MoeMlp
from sim.specs.parallel import Parallel
from sim.specs.precision import Precision
from studies.kernel_tables.__main__ import main
from studies.kernel_tables.latency_tables import Table, read_tables
from studies.kernel_tables.rows import predicted
from studies.kernel_tables.table_errors import layer_errors

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
    nested(tmp_path, columns={**GEMM, "gemm_dtype": ["bfloat16", "bfloat16", "fp6"]})
    other = tmp_path / "l40s" / "encoder" / "vllm" / "0.24.0" / "encoder_perf.parquet"
    other.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"latency": [1.0]}), other)
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line for line in lines if line.startswith("L40S  GEMM")][-1].split()[2:6] == ["bfloat16", "<=", "64", "rows"]
    assert printed.err == "Passed over: encoder_perf, 1 of 3 rows of gemm_perf.\n"
    assert max(map(len, lines)) <= 80


def made(name, columns, gpu="H100"):
    """What the formula says of a made table's rows, and the measured seconds."""
    whole = {key: np.array(values) for key, values in {"backend": ["", ""], "kernel_source": ["", ""], **columns}.items()}
    (found,) = [each for each in predicted(Table(get_gpu(gpu), name, "1", Path(), whole)) if len(each.measured_s)]
    return found


def test_sparse_attention_takes_longer_than_latent_attention_of_the_same_heads():
    """By its indexer's kernels at a short context, and not by reading its keys at a long one."""
    rows = {"gemm_type": ["bfloat16"] * 2, "num_heads": [64, 64], "batch_size": [32, 32], "step": [63, 131071], "latency": [1.0, 1.0]}
    sparse, latent = (made(f"{name}_generation_module_perf", rows).predicted_s for name in ("dsa", "mla"))
    assert sparse[0] - latent[0] == pytest.approx(INDEX_KERNELS * rates_for(get_gpu("H100"), Precision()).point.kernel_s, rel=0.2)
    assert sparse[1] < 0.5 * latent[1]


def test_calls_of_kernels_launched_one_by_one_are_left_out_near_the_shortest():
    rows = {"gemm_type": ["bfloat16"] * 2, "num_heads": [64, 64], "batch_size": [1, 1], "isl": [64, 8192], "latency": [1.2, 6.0]}
    assert made("dsa_context_module_perf", rows).measured_s.tolist() == [6e-3]


def test_a_recurrent_state_is_read_and_written_once_a_call():
    heads = {f"{of}_{kind}": [size] * 2 for kind, size in (("heads", 96),) for of in ("num_k", "num_v")}
    rows = {**heads, "head_k_dim": [128] * 2, "head_v_dim": [128] * 2, "d_conv": [4, 4], "phase": ["generation"] * 2, "latency": [1.0, 1.0]}
    found = made("kda_perf", {**rows, "batch_size": [1, 1024], "num_tokens": [1, 1024], "kernel_source": ["fused_kda_decode"] * 2})
    state = 2 * 4 * 1023 * 96 * 128 * 128 / rates_for(get_gpu("H100"), Precision()).point.beta_state
    assert found.operation == "KDA decode"
    assert found.predicted_s[1] - found.predicted_s[0] == pytest.approx(state, rel=0.05)


def test_all_to_all_is_in_microseconds_and_each_way_is_half_of_a_layers_exchanges():
    rows = {"comm_backend": ["deepep_ll"] * 2, "phase": ["combine"] * 2, "ep_size": [8, 8], "node_num": [1, 1], "topk": [8, 8]}
    found = made("moe_a2a_perf", {**rows, "hidden_size": [4096, 4096], "num_tokens": [1, 256], "latency": [60.0, 150.0]})
    moe = LayerGroup(1, Attention(32, 8, 128), MoeMlp(256, 8, 2048))
    moved, ops = traffic(ModelSpec("", 4096, 1, (moe,), True, 1), 0.0, 1, Parallel(dp=8, expert=True))
    rates = rates_for(get_gpu("H100"), Precision()).point
    assert found.measured_s.tolist() == pytest.approx([60e-6, 150e-6])
    expected = (ops * rates.comm_latency_s + np.array([1, 256]) * moved / rates.comm_bytes_per_s) / 2
    assert found.predicted_s.tolist() == pytest.approx(expected.tolist())


def test_a_layer_is_summed_where_all_its_kernels_were_timed():
    """Llama-3.2-3B at one sequence: GEMMs of its four shapes, and attention of 24 heads."""
    shapes = [(5120, 3072), (3072, 3072), (16384, 3072), (3072, 8192)]
    gemm = {"gemm_dtype": ["bfloat16"] * 4, "m": [1] * 4, "n": [n for n, _ in shapes], "k": [k for _, k in shapes], "latency": [0.1] * 4}
    attention = {"num_heads": [24], "num_key_value_heads": [8], "head_dim": [128], "batch_size": [1], "step": [1023], "latency": [0.1]}
    tables = [
        Table(get_gpu("L40S"), name, "1", Path(), {key: np.array(values) for key, values in columns.items()})
        for name, columns in (("gemm_perf", gemm), ("generation_attention_perf", attention))
    ]
    sums = sum(float(found.predicted_s.sum()) for table in tables for found in predicted(table))
    in_engine, alone = layer_errors(tables)
    assert (in_engine.operation, in_engine.size, in_engine.n) == ("layer, in engine", "decode", 1)
    assert in_engine.bias == pytest.approx(sums / 5e-4 - 1)
    assert alone.operation == "layer, alone"
    assert not layer_errors(tables[:1])
