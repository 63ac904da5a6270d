"""Text of commands is at most 80 columns wide, indented as asked; names stay whole where they are to be copied."""

from sim.results.tables import benchmark_table
from simctl.text import validate_text
from simctl.text.layout import WIDTH, aligned, fill, folded, wrapped

TEXT = "rates of scenarios/data/measured/h100 as of the per-sequence work of a host that is waited for, of many requests at once"


def test_lines_fit_and_are_indented():
    lines = wrapped(TEXT, "note: ", "      ")
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[0].startswith("note: rates")
    assert all(line.startswith("      ") for line in lines[1:])
    assert fill(TEXT, "note: ", "      ").splitlines() == lines
    assert " ".join(fill(TEXT).split()) == TEXT


def test_whole_words_are_not_broken():
    path = "/a_folder" * 12
    assert wrapped(f"wrote {path}", whole=True) == ["wrote", path]
    assert max(map(len, wrapped(f"wrote {path}"))) == WIDTH


def test_a_table_too_wide_goes_on_below_with_its_first_columns():
    header, row = ["gpu", *(f"figure_{i}" for i in range(9))], ["H100", *("1,234 [1,000-2,000]" for _ in range(9))]
    lines = folded(header, [row, row], repeat=1)
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).split().count("gpu") == 3
    assert [word for word in " ".join(lines).split() if word.startswith("figure")] == header[1:]
    assert folded(header[:3], [row[:3]], repeat=1) == aligned(header[:3], [row[:3]], left=0)


def test_the_benchmark_table_fits_whatever_the_load():
    for size in (1e-6, 1.0, 99.96, 123456.0, 9.9e6):
        summary = {"mean_ttft_ms": size, "p99_ttft_ms": size, "total_token_throughput": size}
        intervals = {name: (0.8 * value, 1.2 * value) for name, value in summary.items()}
        text = benchmark_table(summary, intervals, intervals)
        assert max(map(len, text.splitlines())) <= WIDTH
        assert "e+" not in text


def test_names_cut_to_a_column_stay_apart():
    names = [f"a long name of a load that is {what} and its later part" for what in "abcdefghijklmnop"]
    cut = validate_text._shortened([*names, "short", *names])
    assert len(set(cut.values())) == len(names) + 1
    assert max(map(len, cut.values())) <= validate_text.NAME
    assert cut["short"] == "short"
