"""What a sweep cannot work with is said in one line; what is there is not touched."""

import builtins
import json

import pytest

from tests.cli import run
from tests.sweeps.made_sweeps import ABOUT, opened, scenario, tree

RANGED = ("--vary", "ctx=1000:9000")
WRONG = {
    (): "where to? give -o OUT.zarr",
    ("-o", "OUT", "--vary", "gpuu=A10"): "--vary gpuu: no such option of what-if; did you mean 'gpu'",
    ("-o", "OUT", "--vary", "gpu"): "--vary needs OPTION=VALUES, got 'gpu'",
    ("-o", "OUT", "--vary", "gpu="): "--vary needs OPTION=VALUES",
    ("-o", "OUT", "--vary", "gpu=A10,"): "--vary gpu: needs V1,V2,...",
    ("-o", "OUT", "--vary", "tp=1,1"): "tp: a value is there twice",
    ("-o", "OUT", "--vary", "tp=1", "--vary", "tp=2"): "--vary: an option is given twice",
    ("-o", "OUT", "--vary", "tp=0,1"): "0 is not in the range",
    ("-o", "OUT", "--vary", "tp=1", "--set", "tp=2"): "--vary tp and --set tp: one or the other",
    ("-o", "OUT", *RANGED): "ctx: a range needs a number of samples",
    ("-o", "OUT", "--vary", "ctx=9000:1000", "--samples", "3"): "the lower one first",
    ("-o", "OUT", "--vary", "ctx=0:1000:log", "--samples", "3"): "above 0",
    ("-o", "OUT", "--vary", "ctx=1:1000:linear", "--samples", "3"): "LOW:HIGH:log",
    ("-o", "OUT", *RANGED, "--samples", "0"): "0 is not in the range",
    ("-o", "OUT", "--seed", "1"): "--seed draws a Latin hypercube: give --samples",
    ("-o", "OUT", "--dask", "tcp://127.0.0.1:9", "--workers", "2"): "--workers says how many processes this machine starts",
    ("-o", "OUT", "--dask", "tcp://127.0.0.1:9"): "no scheduler answers",
    ("-o", "OUT", "--dask", "nowhere"): "no scheduler answers",
    ("-o", "FOLDER"): "there, and not a sweep",
    ("-o", "FILE"): "there, and not a sweep",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("arguments", WRONG)
def test_one_line(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr("simctl.from_options.dask_workers.CONNECT_S", 0.5)
    study = scenario(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    places = {"OUT": tmp_path / "a.zarr", "FOLDER": tmp_path / "folder", "FILE": tmp_path / "study.yaml"}
    result = run("sweep", study, *(str(places.get(each, each)) for each in arguments))
    assert result.code != 0
    assert not result.stdout
    assert WRONG[arguments] in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert tree(tmp_path / "folder") == {"mine.txt": b"mine"}


def test_a_sweep_of_another_question_or_version_is_left_as_it_is(tmp_path, monkeypatch):
    study, out = scenario(tmp_path), tmp_path / "a.zarr"
    go = ("sweep", study, "-o", str(out), "--workers", "1")
    assert run(*go).code == 0
    before = tree(out)
    for more, word in ((("--set", "ctx=16K"), "options"), (("--vary", "tp=1"), "axes"), (("--samples", "2"), "samples")):
        result = run(*go, *more)
        assert (result.code, result.stderr.count("\n")) == (2, 1)
        assert f"a sweep that differs in its {word}: " in result.stderr
    monkeypatch.setattr("simctl.scenario_files.scenario.__version__", "2030.1.0")
    result = run(*go)
    assert "a sweep that differs in its version: 2026" in result.stderr
    assert "2030.1.0 here; remove it, or choose another" in result.stderr
    assert tree(out) == before


DAMAGES = {
    "metadata gone": (".zattrs", None, "not a sweep"),
    "metadata cut": (".zattrs", b'{"form', "not a sweep"),
    "a figure's metadata cut": ("ttft_ms/.zarray", b"{", "damaged: ttft_ms cannot be read"),
    "a chunk cut": ("ttft_ms/0.0", b"(\xb5/\xfd", "damaged: ttft_ms cannot be read"),
    "done is noise": ("done/0.0", b"xyz", "damaged: done cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_cannot_be_read_is_refused(name, tmp_path):
    file, content, said = DAMAGES[name]
    with opened(tmp_path / "a.zarr") as store:
        store.put(0, {})
    (tmp_path / "a.zarr" / file).unlink()
    (tmp_path / "a.zarr" / ".zmetadata").unlink()
    if content is not None:
        (tmp_path / "a.zarr" / file).write_bytes(content)
    with pytest.raises(ValueError, match=said), opened(tmp_path / "a.zarr"):
        pass


def test_a_codec_that_reads_and_cannot_write_is_damage(tmp_path):
    path = tmp_path / "a.zarr"
    with opened(path) as store:
        store.put(0, {})
    meta = path / "ttft_ms" / ".zarray"
    described = json.loads(meta.read_text())
    meta.write_text(json.dumps(described | {"compressor": described["compressor"] | {"level": "9"}}))
    (path / ".zmetadata").unlink()
    with pytest.raises(ValueError, match="damaged: ttft_ms cannot be"), opened(path) as store:
        store.put(1, {})


def test_two_cannot_write_one_sweep(tmp_path):
    with opened(tmp_path / "a.zarr"), pytest.raises(ValueError, match="another process writes"), opened(tmp_path / "a.zarr", about=ABOUT):
        pass


@pytest.mark.parametrize(("package", "more"), [("zarr", ()), ("distributed", ("--dask", "local"))])
def test_a_package_that_is_not_installed_is_named(package, more, tmp_path, monkeypatch):
    real = builtins.__import__

    def none(name, *arguments, **how):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *arguments, **how)

    monkeypatch.setattr(builtins, "__import__", none)
    result = run("sweep", scenario(tmp_path), "-o", str(tmp_path / "a.zarr"), *more)
    assert (result.code, result.stderr.count("\n")) == (1, 1)
    assert "[sweep]" in result.stderr
