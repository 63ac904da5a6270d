"""A Dataset as a netCDF classic file (64-bit offset), with numpy alone: a GPU host may have no netCDF library.

xarray reads it back as it reads its own: text is UTF-8 in character arrays, 64-bit integers are 32-bit where they fit, else doubles.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray as xr

CHAR, DIMENSIONS, VARIABLES, ATTRIBUTES = 2, 10, 11, 12
KINDS = {"i1": 1, "i2": 3, "i4": 4, "f4": 5, "f8": 6}  # numpy dtype -> external type


def content(dataset: xr.Dataset) -> bytes:
    """The whole file. Numbers may have any dimensions; raises ValueError for text of other than one, and for a variable of none."""
    sizes = {str(name): size for name, size in dataset.sizes.items()}
    variables = []
    for name, variable in dataset.variables.items():
        text = variable.dtype.kind in "OU"
        if variable.ndim < 1 or (text and variable.ndim > 1):
            raise ValueError(f"{name}: {'text' if text else 'a number'} of {variable.ndim} dimensions is not written")
        dims, kind, data, attrs = [str(dim) for dim in variable.dims], 0, b"", dict(variable.attrs)
        if text:
            texts = [str(v).encode() for v in variable.values]
            width = max([1, *map(len, texts)])
            dims.append(f"string{width}")
            sizes[dims[1]] = width
            kind, data, attrs = CHAR, b"".join(t.ljust(width, b"\0") for t in texts), attrs | {"_Encoding": "utf-8"}
        else:
            values = narrowed(variable.values)
            kind, data = KINDS[values.dtype.str[1:]], values.astype(values.dtype.newbyteorder(">")).tobytes()
        variables.append((str(name), dims, kind, attrs, data + b"\0" * (-len(data) % 4)))
    number = {name: index for index, name in enumerate(sizes)}
    head = b"CDF\x02" + struct.pack(">i", 0) + _list(DIMENSIONS, [_text(n) + struct.pack(">i", size) for n, size in sizes.items()])
    head += _attributes(dataset.attrs) + struct.pack(">ii", VARIABLES if variables else 0, len(variables))
    entries = [
        _text(name) + struct.pack(f">i{len(dims)}i", len(dims), *(number[d] for d in dims)) + _attributes(attrs) + struct.pack(">i", kind)
        for name, dims, kind, attrs, _ in variables
    ]
    at = len(head) + sum(len(entry) + 12 for entry in entries)
    out = [head]
    for entry, (*_, data) in zip(entries, variables, strict=True):
        out.append(entry + struct.pack(">iq", len(data), at))
        at += len(data)
    return b"".join([*out, *(data for *_, data in variables)])


def narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Values in a type that the format has. Raises ValueError for what none holds."""
    if values.dtype.kind == "b":
        return values.astype("i1")
    if values.dtype.kind in "iu" and values.dtype.str[1:] not in KINDS:
        small = not values.size or (values.min() >= -(2**31) and values.max() < 2**31)
        return values.astype("i4" if small else "f8")
    if values.dtype.str[1:] not in KINDS:
        raise ValueError(f"netCDF classic holds no {values.dtype}")
    return values


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw + b"\0" * (-len(raw) % 4)


def _list(tag: int, entries: list[bytes]) -> bytes:
    return struct.pack(">ii", tag if entries else 0, len(entries)) + b"".join(entries)


def _attributes(attrs: Mapping[Any, Any]) -> bytes:
    return _list(ATTRIBUTES, [_text(str(name)) + _value(value) for name, value in attrs.items()])


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack(">i", CHAR) + _text(value)
    one = narrowed(np.asarray(value).reshape(1))
    data = one.astype(one.dtype.newbyteorder(">")).tobytes()
    return struct.pack(">ii", KINDS[one.dtype.str[1:]], 1) + data + b"\0" * (-len(data) % 4)
