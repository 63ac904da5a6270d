"""GPU code in shared libraries: blank what is for other GPUs, so that a compressed bundle holds code of one architecture.

An ELF section `.nv_fatbin` holds containers: a header (magic number, version, header size, size), then entries of PTX or machine code, each
with its kind, header size, size and architecture. The layout is NVIDIA's and not documented; what does not look like it is left alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

MAGIC, MACHINE_CODE = 0xBA55ED50, 2
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")


def blanked(library: bytes, arch: int, kernels: bytes = b"") -> bytes:
    """The library with zeros for machine code of other architectures than `arch` (90: Hopper), for PTX where code of `arch` stands
    beside it, and for code in which no kernel's mangled name matches the pattern `kernels`. It loads and runs on `arch` as before, but
    for the kernels left out.
    """
    data = bytearray(library)
    named = re.compile(kernels)
    for begin, end in _sections(library):
        for entries in _containers(library, begin, end):
            known = any(kind == MACHINE_CODE and of == arch for kind, of, _, _ in entries)
            for kind, of, at, size in entries:
                if (of != arch or not named.search(library, at, at + size)) if kind == MACHINE_CODE else known:
                    data[at : at + size] = bytes(size)
    return bytes(data)


def _sections(data: bytes) -> Iterator[tuple[int, int]]:
    """Offsets of GPU code in a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        return
    (table,), (size, count, names) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        if data[start : data.index(b"\0", start)] in SECTIONS:
            yield offset, offset + length


def _containers(data: bytes, at: int, end: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """The entries of each container: kind, architecture, where its code begins, bytes."""
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8
            continue
        at, stop, entries = at + header, at + header + size, []
        while at < stop:
            kind, _, own, length = struct.unpack_from("<HHIQ", data, at)
            (arch,) = struct.unpack_from("<I", data, at + 28)
            entries.append((kind, arch, at + own, length))
            at += own + length
        yield entries
