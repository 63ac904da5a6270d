"""A bundle comes back as it was packed, and the stub answers for whatever is asked of the package it replaces."""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sim.errors import SimctlError
from studies import airgap


def test_parts_are_small_and_restore_the_tree(tmp_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    (site / "package").mkdir(parents=True)
    out.mkdir()
    (site / "package" / "noise.bin").write_bytes(np.random.default_rng(0).bytes(5000))
    (site / "package" / "__init__.py").write_text("answer = 42\n")
    parts = airgap.pack(site, out, part_bytes=1000)
    assert len(parts) > 4
    assert max(p.stat().st_size for p in parts) <= 1000
    sums = dict(reversed(line.split()) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in parts}
    # as docs/air-gapped.md says it for Python 3.12; a 3.11 before 3.11.4 knows no filters
    named = ", filter='data'" if hasattr(tarfile, "data_filter") else ""
    read = f"import lzma, sys, tarfile; tarfile.open(fileobj=lzma.open(sys.stdin.buffer), mode='r|').extractall('back'{named})"
    joined = b"".join(part.read_bytes() for part in sorted(out.glob("part_*")))
    subprocess.run([sys.executable, "-c", read], input=joined, cwd=tmp_path, check=True)
    for file in (f for f in site.rglob("*") if f.is_file()):
        assert (tmp_path / "back" / file.relative_to(site)).read_bytes() == file.read_bytes()


def test_unwanted_files_stay_out_and_the_stub_stands_in(tmp_path: Path) -> None:
    wheel = tmp_path / "engine-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine/__init__.py", "")
        archive.writestr("engine/_vllm_fa2_C.abi3.so", "x" * 10)
    site = tmp_path / "site"
    airgap.unpack([wheel], site)
    assert (site / "engine" / "__init__.py").exists()
    assert not (site / "engine" / "_vllm_fa2_C.abi3.so").exists()
    program = (
        "from xgrammar import Grammar\nfrom xgrammar.deep.inside import Thing\nimport xgrammar.other as o\n"
        "print(isinstance(Thing(1, a=2), Thing), o.Name('x') is not None, Grammar | None)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=site, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True True")


def test_sglang_is_told_to_do_without_what_is_left_out_or_packing_stops(tmp_path: Path) -> None:
    said = 'get_bool_env_var("SGLANG_IS_FLASHINFER_AVAILABLE", default="true")'
    for text, fits in ((said, True), ("another release", False)):
        wheel, site = tmp_path / f"sglang-{fits}-py3-none-any.whl", tmp_path / str(fits)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("sglang/srt/utils/common.py", text)
        if fits:
            airgap.unpack([wheel], site, airgap.SGLANG)
            assert (site / "sglang/srt/utils/common.py").read_text() == said.replace("true", "false")
        else:
            with pytest.raises(SimctlError, match=r"common\.py: this release says otherwise"):
                airgap.unpack([wheel], site, airgap.SGLANG)


@pytest.mark.parametrize(
    ("wheel", "taken"),
    [
        ("numpy-2.0-cp312-linux.whl", False),
        ("typing_extensions-4.whl", False),
        ("vllm-0.23.0-cp38.whl", True),
        ("loguru-0.7.whl", True),
    ],
)
def test_what_the_host_has_is_left_out(wheel: str, taken: bool) -> None:
    assert airgap.wanted(wheel) is taken


def test_deep_gemm_travels_with_the_binary_of_the_hosts_python_alone(tmp_path: Path) -> None:
    wheel, site = tmp_path / "vllm-0.26.0-cp38-abi3-linux.whl", tmp_path / "site"
    names = [f"vllm/third_party/deep_gemm/_C.cpython-{minor}-x86_64-linux-gnu.so" for minor in (310, 311, 312, 313, 314)]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*names, "vllm/third_party/deep_gemm/__init__.py"]:
            archive.writestr(name, "")
    airgap.unpack([wheel], site, airgap.bundle_of("vllm", "0.26.0"))
    assert sorted(p.name for p in (site / "vllm/third_party/deep_gemm").iterdir()) == ["_C.cpython-312-x86_64-linux-gnu.so", "__init__.py"]


def test_a_release_brings_the_requirements_it_pins() -> None:
    old, new, unknown = (airgap.bundle_of("vllm", version) for version in (None, "0.26.0", "0.24.0"))
    assert (old.version, unknown.version) == ("0.23.0", "0.24.0")
    assert unknown.resolved == old.resolved
    assert [name for name in new.resolved if name.startswith("apache-tvm-ffi")] == ["apache-tvm-ffi==0.1.10"]
    assert "flashinfer-python==0.6.14" in new.alone
