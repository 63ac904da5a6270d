"""studies.fatbin: machine code of other GPUs is blanked, that of the one kept stays, and what is no such library comes back unchanged."""

import struct

import pytest

from studies.fatbin import MACHINE_CODE, MAGIC, SECTIONS, blanked

PTX, HOPPER, AMPERE = 1, 90, 80


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """A container of (kind, architecture, code)."""
    body = b"".join(struct.pack("<HHIQ12xI32x", kind, 0, 64, len(code), arch) + code for kind, arch, code in entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def library(code: bytes, name: bytes) -> bytes:
    """A 64-bit ELF file of two sections: code, and the names of sections."""
    names = b"\0" + name + b"\0.shstrtab\0"
    at = 64 + len(code) + len(names)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 0x28, at)
    struct.pack_into("<HHH", head, 0x3A, 64, 2, 1)
    sections = struct.pack("<IIQQQQ24x", 1, 0, 0, 0, 64, len(code)) + struct.pack("<IIQQQQ24x", 2, 0, 0, 0, 64 + len(code), len(names))
    return bytes(head) + code + names + sections


def test_code_of_other_gpus_is_blank_and_nothing_moves():
    every = [(MACHINE_CODE, AMPERE, b"a" * 40), (MACHINE_CODE, HOPPER, b"h" * 24), (PTX, HOPPER, b"p" * 16)]
    found = blanked(library(container(*every) + bytes(8) + container(every[0], every[2]), SECTIONS[0]), HOPPER)
    kept = [(*every[0][:2], bytes(40)), every[1], (PTX, HOPPER, bytes(16))]
    alone = [kept[0], every[2]]  # without machine code of its own, a GPU needs the PTX
    assert found == library(container(*kept) + bytes(8) + container(*alone), SECTIONS[0])


@pytest.mark.parametrize(
    "data", [b"", b"text", library(container((MACHINE_CODE, AMPERE, b"a" * 8)), b".data"), library(b"x" * 64, SECTIONS[0])]
)
def test_anything_else_is_left_alone(data):
    assert blanked(data, HOPPER) == data


def test_of_the_kernels_only_those_named_are_kept():
    wanted, other = (MACHINE_CODE, HOPPER, b"\0.text._Z4headILi128EE"), (MACHINE_CODE, HOPPER, b"\0.text._Z4headILi256EE")
    found = blanked(library(container(wanted, other), SECTIONS[0]), HOPPER, rb"ILi128E|combine")
    assert found == library(container(wanted, (*other[:2], bytes(len(other[2])))), SECTIONS[0])
