"""The wheel: below 8 MB, with every packaged posterior and grid, typed, and without raw served runs, tests or docs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from calibrate.measured_files import KEPT_APART

ROOT = Path(__file__).parents[2]
MOST_BYTES = 8_000_000
NOT_NEEDED = ("served_", "products", "profile_")  # measured files that nothing packaged is learnt from


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_it_is_small_and_holds_posteriors_and_grids_but_no_raw_runs(wheel: Path) -> None:
    assert wheel.stat().st_size <= MOST_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    data = ROOT / "scenarios" / "data"
    posteriors = [path for path in (data / "posteriors").iterdir() if path.is_file()]
    known = [path for path in (data / "measured").rglob("*.nc") if path.parent.name not in KEPT_APART]
    measured = [path for path in known if not path.name.startswith(NOT_NEEDED)]
    assert len(measured) > 40
    assert {path.relative_to(ROOT).as_posix() for path in (*posteriors, *measured)} <= names
    assert not [name for name in names if "/measured/" in name and name.rpartition("/")[2].startswith(NOT_NEEDED)]
    assert {
        "sim/py.typed",
        "calibrate/py.typed",
        "hw/py.typed",
        "simctl/py.typed",
        "sim/data/products.npz",
        "scenarios/data/replicated.json",
    } <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "calibrate",
        "hw",
        "kernels",
        "scenarios",
        "sim",
        "simctl",
        "studies",
    }
    assert {"studies/program.py", "studies/knees/__main__.py"} <= {name for name in names if name.startswith("studies/")}
    assert not [name for name in names if name.startswith("studies/") and name.split("/")[1] not in ("__init__.py", "program.py", "knees")]


@pytest.mark.slow
def test_knees_run_from_it(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "curve.csv").write_text("model,gpu,context_tokens,batch,step_s\nqwen2.5-7b,H100,512,1,0.01\nqwen2.5-7b,H100,512,2,0.02\n")
    program = "import sys; sys.path.insert(0, '.'); from studies.knees.__main__ import main; sys.exit(main(['curve.csv']))"
    result = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "qwen2.5-7b" in result.stdout


@pytest.mark.slow
def test_validate_from_it_says_where_the_runs_are(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "import sys; sys.path.insert(0, '.'); from simctl.cli import main; main(['validate'])"
    result = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "simctl: served runs come with the source tree, not with an installed package: give one with --run FILE"
    ]
