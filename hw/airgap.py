"""Pack vLLM for a GPU host that has PyTorch but no network, in parts small enough to carry. See docs/air-gapped.md.

The host is x86-64 with Python 3.12 and the torch that this vLLM release pins; packages it has are left out of the bundle. Only
GPU code for Hopper is kept, and structured output is replaced by a stub: a benchmark needs neither the rest nor that.
Run where pip can reach an index: `python -m hw.airgap OUT_DIR`.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import click

from hw.fatbin import blanked
from sim.errors import SimctlError

VLLM = "0.23.0"
PART_BYTES = 58_000_000
GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)

# Resolved with their dependencies. Bounds are those this vLLM release states.
RESOLVED = (
    "anthropic", "apache-tvm-ffi==0.1.9", "blake3", "cachetools", "cbor2", "diskcache==5.6.3", "fastapi[standard]<0.137", "gguf", "ijson",
    "lark==1.2.2", "llguidance<1.8.0", "lm-format-enforcer==0.11.3", "mcp", "mistral_common[image]", "model-hosting-container-standards<1",
    "msgspec", "openai", "openai-harmony", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-semantic-conventions-ai",
    "outlines_core==0.2.14", "partial-json-parser", "prometheus-fastapi-instrumentator", "pybase64", "pydantic>=2.12", "python-json-logger",
    "pyzmq", "setproctitle", "watchfiles",
)  # fmt: skip
# Taken alone: their own requirements would pull torch and CUDA in again.
ALONE = ("compressed-tensors==0.17.0", "depyf==0.20.0", "loguru", "astor", "dill", "quack-kernels", "fastsafetensors")
# A PyTorch image has these; a second copy could only disagree with it.
ON_HOST = frozenset(
    {
        "annotated-doc", "anyio", "attrs", "certifi", "charset-normalizer", "click", "cryptography", "h11", "httpcore", "httpx", "idna",
        "jinja2", "markdown-it-py", "markupsafe", "mdurl", "numpy", "opencv-python-headless", "packaging", "pillow", "prometheus-client",
        "pygments", "pyyaml", "regex", "requests", "rich", "setuptools", "shellingham", "tiktoken", "tqdm", "typer", "typing-extensions",
        "urllib3", "uvloop",
    }
)  # fmt: skip
ARCH = 90  # Hopper
LEFT_OUT = ("_vllm_fa2_C", "vllm-rs", "swagger", "third_party/deep_gemm", "mistral_common/data/tekken")
STUBS = ("xgrammar/__init__.py", "humming/__init__.py")  # structured output; a quantisation that vLLM imports with every other
STUB = '''"""Stands in for a package left out of this bundle: every name is a class that does nothing, every submodule likewise."""

import importlib.abc
import importlib.machinery
import sys
import types


class Absent:
    def __init__(self, *args, **kwargs):
        pass


def absent(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = absent
        return module

    def exec_module(self, module):
        pass


__getattr__ = absent
sys.meta_path.append(Submodules())
'''

# Random weights as the engine makes them leave those of whole numbers as the memory was, often zeros, which draw less power.
# Packed four-bit values and shared exponents of eight bits get values that neither overflow nor vanish.
DUMMY = "vllm/model_executor/model_loader/weight_utils.py"
LEFT_AS_IT_WAS = "            param.zero_()\n        return\n"
DRAWN = """            param.zero_()
        elif param.dtype == torch.int32 and param.ndim > 1:
            param.random_(-(2**31), 2**31 - 1)
        elif param.dtype == torch.uint8 and param.ndim > 1:
            param.random_(112, 120)
        return
"""


def download(wheels: Path, version: str = VLLM) -> None:
    """Fetch all wheels into `wheels` with pip. Raises SimctlError with pip's last words when it fails."""
    base = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(wheels)]
    base += ["--python-version", "3.12", "--implementation", "cp"]
    for tag in [*(f"manylinux_2_{n}_x86_64" for n in GLIBC), "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]:
        base += ["--platform", tag]
    for call in ([*base, *RESOLVED], *([*base, "--no-deps", name] for name in (*ALONE, f"vllm=={version}"))):
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SimctlError(f"pip download failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}")


def wanted(wheel: str) -> bool:
    """Whether a wheel (by file name) goes into the bundle: not if the host has the package."""
    return wheel.split("-")[0].lower().replace("_", "-") not in ON_HOST


def unpack(wheels: Iterable[Path], site: Path) -> None:
    """Lay the wheels out as one importable folder, less LEFT_OUT, plus the stubs."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [n for n in archive.namelist() if not any(part in n for part in LEFT_OUT)])
    for library in (site / "vllm").rglob("*.so"):
        library.write_bytes(blanked(library.read_bytes(), ARCH))
    if (dummy := site / DUMMY).exists():
        text = dummy.read_text()
        if text.count(LEFT_AS_IT_WAS) != 1:
            raise SimctlError(f"{DUMMY}: this release draws random weights otherwise than known here")
        dummy.write_text(text.replace(LEFT_AS_IT_WAS, DRAWN))
    for name in STUBS:
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(STUB)


def pack(site: Path, out: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Compress `site` into `out/part_000`, `part_001`, ... of at most `part_bytes`, with a SHA-256 list. Returns the parts."""
    packed = out / "site.tar.xz.tmp"
    with lzma.open(packed, "wb", preset=6) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(site, arcname=".")
    parts: list[Path] = []
    with packed.open("rb") as source:
        while piece := source.read(part_bytes):
            parts.append(out / f"part_{len(parts):03d}")
            parts[-1].write_bytes(piece)
    packed.unlink()
    sums = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in parts)
    (out / "SHA256SUMS").write_text("".join(sums))
    return parts


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--version", default=VLLM, show_default=True, help="vLLM release; the host must have the torch it pins.")
def main(out: Path, version: str) -> None:
    """Pack vLLM into OUT/part_* for a host without network."""
    wheels, site = out / "wheels", out / "site"
    wheels.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(site, ignore_errors=True)
    click.echo(f"fetching vllm {version} and what it needs", err=True)
    download(wheels, version)
    unpack((w for w in sorted(wheels.glob("*.whl")) if wanted(w.name)), site)
    click.echo("packing (minutes)", err=True)
    for part in pack(site, out):
        click.echo(part)


if __name__ == "__main__":
    main()
