"""Release files beside a wheel: the versions it was tested with, and its bill of materials.

    python -m studies.release [-o DIR] [--extra NAME]...

builds the wheel twice, refuses where the two differ by a byte, and writes into DIR (dist)

    *.whl             built with the time of the last commit (SOURCE_DATE_EPOCH), so that anyone gets the same bytes
    constraints.txt   NAME==VERSION of what the wheel needs, as installed here: pip install -c constraints.txt llm-simctl
    sbom.json         CycloneDX 1.5: the wheel with its SHA-256, and these packages with versions and licences
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from sim.errors import SimctlError
from sim.files import made_folder, write_text
from studies.program import program

ROOT = Path(__file__).parents[1]
NAME = "llm-simctl"


def needed(name: str, extras: Sequence[str] = ()) -> dict[str, Distribution]:
    """What a package needs, as installed here, by normal name: its requirements and theirs, without itself. Raises SimctlError for one
    that is not installed.
    """
    found: dict[str, Distribution] = {}
    waiting = list(_requirements(name, extras))
    while waiting:
        each, asked = waiting.pop()
        if each not in found:
            try:
                found[each] = distribution(each)
            except PackageNotFoundError:
                raise SimctlError(f"{each}, which {name} needs, is not installed here") from None
            waiting += _requirements(each, asked)
    return dict(sorted(found.items()))


def _requirements(name: str, extras: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """(normal name, extras asked for) of what a package requires on this system."""
    from packaging.requirements import Requirement

    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield normal(requirement.name), sorted(requirement.extras)


def normal(name: str) -> str:
    """A package's name as an index normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints(packages: dict[str, Distribution]) -> str:
    """A constraints file."""
    return "".join(f"{name}=={package.version}\n" for name, package in packages.items())


def bill_of_materials(wheel: Path, packages: dict[str, Distribution]) -> dict[str, Any]:
    """CycloneDX 1.5, without a date: equal inputs give equal bytes."""
    version = wheel.name.split("-")[1]
    own = {"type": "application", "name": NAME, "version": version, "purl": f"pkg:pypi/{NAME}@{version}"}
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    components = [
        {
            "type": "library",
            "name": name,
            "version": package.version,
            "purl": f"pkg:pypi/{name}@{package.version}",
            **({"licenses": [{"license": {"name": licence}}]} if (licence := _licence(package)) else {}),
        }
        for name, package in packages.items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**own, "hashes": [{"alg": "SHA-256", "content": digest}]}},
        "components": components,
    }


def _licence(package: Distribution) -> str:
    """What a package says of its licence, on one line."""
    metadata = package.metadata.json
    classified = [line.rpartition(" :: ")[2] for line in metadata.get("classifier", ()) if line.startswith("License ::")]
    whole = metadata.get("license_expression") or (classified[0] if classified else metadata.get("license")) or ""
    return str(whole).partition("\n")[0][:100].strip()


def built(folder: Path) -> Path:
    """The wheel, with the time of the last commit."""
    when = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "SOURCE_DATE_EPOCH": when or "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SimctlError(f"the wheel is not built: {done.stderr[-300:]}")
    return next(folder.glob("*.whl"))


@program("studies.release")
def main(argv: Sequence[str]) -> int:
    """Build, compare and write."""
    parser = argparse.ArgumentParser(prog="studies.release")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--extra", action="append", default=[])
    given = parser.parse_args(argv)
    made_folder(given.out)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, second = built(Path(one)), built(Path(other))
        if first.read_bytes() != second.read_bytes():
            raise SimctlError("two builds of one commit differ")
        wheel = given.out / first.name
        wheel.write_bytes(first.read_bytes())
    packages = needed(NAME, given.extra)
    write_text(given.out / "constraints.txt", constraints(packages))
    write_text(given.out / "sbom.json", json.dumps(bill_of_materials(wheel, packages), indent=1) + "\n")
    print(f"{wheel}\n{given.out / 'constraints.txt'}: {len(packages)} packages\n{given.out / 'sbom.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
