"""`simctl knees` analyses a CSV, recomputes the published study, and refuses malformed input by line."""

import json

import pytest

from sim.knee import eta
from simctl.cli import main

HEADER = "model,gpu,context_tokens,batch,step_s,weight_bytes,kv_bytes,memory_bytes\n"


def write(path, rows):
    path.write_text(HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(path)


def rows(alpha=1.0):
    for model, weight in (("a", 8e9), ("b", 16e9)):
        for context in (4096, 16384):
            kv = context * 1e5
            for batch in (1, 2, 4, 8, 16, 32):
                step = 0.01 / eta(batch, alpha * kv / weight)
                yield (model, "H100", context, batch, step, weight, kv, 80e9)


def run(argv, capsys):
    try:
        code = main(["knees", *argv])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def test_prints_tables_of_a_measured_grid(tmp_path, capsys):
    code, out, err = run([write(tmp_path / "grid.csv", rows()), "--resamples", "200"], capsys)
    assert (code, err) == (0, "")
    assert "knees at tau 0.65 (n = 4 curves)" in out
    assert "Ck/W closed-form" in out


def test_json_holds_the_same_knees_and_no_nan(tmp_path, capsys):
    code, out, _ = run([write(tmp_path / "grid.csv", rows(alpha=0.2)), "--json", "--resamples", "200"], capsys)
    assert code == 0
    result = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(result["curves"]) == 4
    assert result["alpha"]["H100"] == pytest.approx(0.2, rel=0.15)


def test_the_published_study_recomputes(capsys):
    code, out, _ = run(["tr164"], capsys)
    assert code == 0
    assert out.count(" ok ") == 14
    assert out.count("MISS") == 1


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (("a", "H100", 4096, 2, "nan", 8e9, 1e9, 80e9), ":3: step_s must be positive"),
        (("a", "H100", 4096, 2, -1, 8e9, 1e9, 80e9), ":3: step_s must be positive"),
        (("a", "H100", 4096, 2, "x", 8e9, 1e9, 80e9), ":3: step_s is not a number"),
        (("a", "H100", 4096, 2, 0.1, 8e9, "", 80e9), ":3: give all of weight_bytes"),
    ],
)
def test_a_malformed_line_is_named_on_one_line_of_stderr(tmp_path, capsys, bad, says):
    good = ("a", "H100", 4096, 1, 0.1, 8e9, 1e9, 80e9)
    code, out, err = run([write(tmp_path / "bad.csv", [good, bad])], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_curve_without_batch_one_and_a_missing_file_are_refused(tmp_path, capsys):
    lone = [("a", "H100", 4096, b, 0.1, 8e9, 1e9, 80e9) for b in (2, 4)]
    code, _, err = run([write(tmp_path / "lone.csv", lone)], capsys)
    assert code == 2
    assert "needs batch 1" in err
    assert run([write(tmp_path / "empty.csv", [])], capsys)[0] == 2
    assert run([str(tmp_path / "absent.csv")], capsys)[0] == 1
