"""Pack an engine for a GPU host that has PyTorch but no network, in parts small enough to carry. See docs/air-gapped.md.

The host is x86-64 with Python 3.12 and the torch that the engine's release pins; packages it has are left out of the bundle. Only
GPU code for Hopper is kept, and structured output is replaced by a stub: a benchmark needs neither the rest nor that.
Run where pip can reach an index: `python -m studies.airgap OUT_DIR`.
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
from dataclasses import dataclass, replace
from pathlib import Path

import click

from sim.errors import SimctlError
from studies.fatbin import blanked

PART_BYTES = 58_000_000
GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What travels of an engine's release."""

    package: str
    version: str
    resolved: tuple[str, ...]  # with their dependencies; bounds are those that this release states
    alone: tuple[str, ...]  # their own requirements would pull torch and CUDA in again
    left_out: tuple[str, ...]  # files whose path holds one of these
    stubs: tuple[str, ...]  # packages that stand in for left-out ones
    edits: dict[str, tuple[str, str]]  # by file: what it says, and what it shall say
    kernels: dict[str, bytes]  # by library: a pattern of the mangled names of the kernels kept, where not all of them are


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

# Random weights as vLLM makes them leave those of whole numbers as the memory was, often zeros, which draw less power.
# Packed four-bit values and shared exponents of eight bits get values that neither overflow nor vanish.
LEFT_AS_IT_WAS = "            param.zero_()\n        return\n"
DRAWN = """            param.zero_()
        elif param.dtype == torch.int32 and param.ndim > 1:
            param.random_(-(2**31), 2**31 - 1)
        elif param.dtype == torch.uint8 and param.ndim > 1:
            param.random_(112, 120)
        return
"""
# Transformers 5 renames kinds of layers; vLLM 0.23's table of this model's has the old names alone.
LAYERS = "ALL_DECODER_LAYER_TYPES = {\n"
RENAMED = LAYERS + (
    '    "full_attention": GraniteMoeHybridAttentionDecoderLayer,\n    "linear_attention": GraniteMoeHybridMambaDecoderLayer,\n'
)
# DeepGEMM, blocks of fp8, has a binary for each Python; the host's nvcc compiles its kernels as they come up.
OTHER_PYTHONS = tuple(f"deep_gemm/_C.cpython-3{minor}-" for minor in (9, 10, 11, 13, 14))
VLLM = Bundle(
    "vllm", "0.23.0",
    (
        "anthropic", "apache-tvm-ffi==0.1.9", "blake3", "cachetools", "cbor2", "diskcache==5.6.3", "fastapi[standard]<0.137", "gguf",
        "ijson", "lark==1.2.2", "llguidance<1.8.0", "lm-format-enforcer==0.11.3", "mcp", "mistral_common[image]",
        "model-hosting-container-standards<1", "msgspec", "openai", "openai-harmony", "opentelemetry-api", "opentelemetry-sdk",
        "opentelemetry-semantic-conventions-ai", "outlines_core==0.2.14", "partial-json-parser", "prometheus-fastapi-instrumentator",
        "pybase64", "pydantic>=2.12", "python-json-logger", "pyzmq", "setproctitle", "watchfiles",
    ),
    ("compressed-tensors==0.17.0", "depyf==0.20.0", "loguru", "astor", "dill", "quack-kernels", "fastsafetensors"),
    ("_vllm_fa2_C", "vllm-rs", "swagger", "fmha_sm100", "mistral_common/data/tekken", *OTHER_PYTHONS),
    ("xgrammar", "humming"),  # structured output; a quantisation that vLLM imports with every other
    {
        "vllm/model_executor/model_loader/weight_utils.py": (LEFT_AS_IT_WAS, DRAWN),
        "vllm/model_executor/models/granitemoehybrid.py": (LAYERS, RENAMED),
    },
    {},
)  # fmt: skip
VLLM_026 = replace(
    VLLM,
    version="0.26.0",
    resolved=(*(name for name in VLLM.resolved if not name.startswith("apache-tvm-ffi")), "apache-tvm-ffi==0.1.10"),
    alone=(*VLLM.alone, "flashinfer-python==0.6.14", "nvtx==0.2.15"),  # as it was run
)
# Its norms come with its own kernels, and tokens are drawn by PyTorch: flashinfer is not needed. The host's nvcc compiles small kernels
# at the first start. Of attention, 372 pieces of GPU code of 992 MB, those of bf16 with heads of 128 and no soft cap are kept.
SGLANG = Bundle(
    "sglang", "0.5.15",
    (
        "apache-tvm-ffi==0.1.11", "dill", "fastapi<0.137", "gguf", "jsonschema", "loguru", "msgspec", "openai==2.6.1",
        "openai-harmony==0.0.4", "orjson", "partial-json-parser", "pybase64", "pydantic", "python-multipart", "pyzmq>=25.1.2",
        "setproctitle", "uvicorn",
    ),
    ("sglang-kernel==0.4.4", "transformers==5.12.1", "compressed-tensors"),
    ("sgl_kernel/sm100", "flashmla_ops", "spatial_ops", "sglang/multimodal_gen", "sglang/test/", "sglang/srt/grpc/_core"),
    ("IPython", "soundfile", "flashinfer"),
    {
        "sglang/srt/utils/common.py": ('FLASHINFER_AVAILABLE", default="true"', 'FLASHINFER_AVAILABLE", default="false"'),
        "sgl_kernel/elementwise.py": ("import flashinfer.norm as _flashinfer_norm", 'raise ImportError("left out")'),
        "transformers/dependency_versions_table.py": ("tokenizers>=0.22.0,<=0.23.0", "tokenizers>=0.22.0"),
    },
    {"flash_ops.abi3.so": rb"_EEELi128ENS_10bfloat16_tEfNS_4arch4Sm90ELb\dELb\dELb0E|FlashAttnFwdCombine|prepare_varlen"},
)  # fmt: skip
BUNDLES = {bundle.package: bundle for bundle in (VLLM, SGLANG)}


def bundle_of(engine: str, version: str | None) -> Bundle:
    """What travels of a release; of one that is not known here, as of the engine's first."""
    known = BUNDLES[engine]
    return next(
        (one for one in (known, VLLM_026) if (one.package, one.version) == (engine, version)),
        replace(known, version=version or known.version),
    )


def download(wheels: Path, bundle: Bundle) -> None:
    """Fetch all wheels into `wheels` with pip. Raises SimctlError with pip's last words when it fails."""
    base = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(wheels)]
    base += ["--python-version", "3.12", "--implementation", "cp"]
    for tag in [*(f"manylinux_2_{n}_x86_64" for n in GLIBC), "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]:
        base += ["--platform", tag]
    alone = (*bundle.alone, f"{bundle.package}=={bundle.version}")
    for call in ([*base, *bundle.resolved], *([*base, "--no-deps", name] for name in alone)):
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SimctlError(f"pip download failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}")


def wanted(wheel: str) -> bool:
    """Whether a wheel (by file name) goes into the bundle: not if the host has the package."""
    return wheel.split("-")[0].lower().replace("_", "-") not in ON_HOST


def unpack(wheels: Iterable[Path], site: Path, bundle: Bundle = VLLM) -> None:
    """Lay the wheels out as one importable folder, less what is left out, plus the stubs. Raises SimctlError where an edit does not fit."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [n for n in archive.namelist() if not any(part in n for part in bundle.left_out)])
    for library in (found for name in ("vllm", "sgl_kernel") for found in (site / name).rglob("*.so")):
        library.write_bytes(blanked(library.read_bytes(), ARCH, bundle.kernels.get(library.name, b"")))
    for name, (said, shall_say) in bundle.edits.items():
        if (target := site / name).exists():
            text = target.read_text()
            if text.count(said) != 1:
                raise SimctlError(f"{name}: this release says otherwise than known here")
            target.write_text(text.replace(said, shall_say))
    for name in bundle.stubs:
        target = site / name / "__init__.py"
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
@click.option("--engine", type=click.Choice(tuple(BUNDLES)), default="vllm", show_default=True)
@click.option("--version", help="Its release; the host must have the torch it pins.  [default: as known here]")
@click.option("--part-bytes", type=click.IntRange(min=1000), default=PART_BYTES, show_default=True, help="Of a part, at most.")
def main(out: Path, engine: str, version: str | None, part_bytes: int) -> None:
    """Pack an engine into OUT/part_* for a host without network."""
    bundle = bundle_of(engine, version)
    wheels, site = out / "wheels", out / "site"
    wheels.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(site, ignore_errors=True)
    click.echo(f"fetching {engine} {bundle.version} and what it needs", err=True)
    download(wheels, bundle)
    unpack((w for w in sorted(wheels.glob("*.whl")) if wanted(w.name)), site, bundle)
    click.echo("packing (minutes)", err=True)
    for part in pack(site, out, part_bytes):
        click.echo(part)


if __name__ == "__main__":
    main()
