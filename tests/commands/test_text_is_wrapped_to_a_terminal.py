"""Text of commands is at most 80 columns wide, indented as asked; names stay whole where they are to be copied."""

from simctl.text import WIDTH, fill, wrapped

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
