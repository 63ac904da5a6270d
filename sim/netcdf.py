"""NetCDF files: written whole or not at all; read so that whatever damaged bytes make the library do becomes one error."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np

from sim.errors import SimctlError, UsageError
from sim.files import replacing

Value = TypeVar("Value")
LONGEST_FIXED = 2**15  # characters of an attribute beside its name: HDF5 has room for 64 KiB, text of any length lies elsewhere


class DamagedFileError(Exception):
    """The library could not read the file; the text is its own word for it, on one line."""


def said(error: Exception) -> str:
    """Message of an error, on one line of whole words; its type where it says nothing."""
    return shorten(str(error), 80, placeholder=" ...").strip() or type(error).__name__


def whole(read: Callable[[], Value]) -> Value:
    """Result of `read`. DamagedFileError for whatever it raises: what a library does with damaged bytes is wherever they lead it.

    A file object that was never quite opened fails once more when it is thrown away, which Python prints as a traceback. What is wrong with
    the file has been said by then, so that is kept quiet.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        try:
            with warnings.catch_warnings(action="ignore"):  # about attributes that nothing here reads
                return read()
        except Exception as error:
            damage = said(error)
        gc.collect()
    finally:
        sys.unraisablehook = before
    raise DamagedFileError(damage)


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Around work on a result that was read: what its odd values break is one line that names the file. UsageError."""
    try:
        yield
    except SimctlError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise UsageError(f"{path}: a damaged result ({type(error).__name__}: {str(error)[:80]!r})") from None


def netcdf_content(groups: Mapping[str, Any], level: int = 9) -> memoryview:
    """Content of a netCDF-4 file of xarray.Datasets by group ("/": the file itself), packed by zlib at `level`.

    It is made in memory: where a disk takes no more, the library ends the process. Attributes have the length of their text, and only
    variables an order: many small ones take 0.7 of what h5netcdf writes of them.
    """
    import h5py
    from h5py import h5f, h5p

    making, access = h5p.create(h5p.FILE_CREATE), h5p.create(h5p.FILE_ACCESS)
    making.set_link_creation_order(h5p.CRT_ORDER_TRACKED)
    making.set_obj_track_times(False)  # the same content is the same bytes
    making.set_attr_phase_change(200, 100)  # so many attributes stand beside one another: an index of them takes 2 KB
    if sum(dataset.nbytes for dataset in groups.values()) < 2**31:
        making.set_sizes(4, 4)  # bytes of a place in the file
    access.set_fapl_core(1 << 16, False)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)  # a third of the default's overhead
    with h5py.File(h5f.create(b"in memory", h5f.ACC_TRUNC, making, access)) as file:
        for name, dataset in groups.items():
            _fill(file.require_group(name), dataset, level)
        file.flush()
        return memoryview(file.id.get_file_image())


def _fill(group: Any, dataset: Any, level: int) -> None:
    """Variables, dimensions and attributes of a dataset in a group of an HDF5 file."""
    from xarray.conventions import cf_encoder, encode_dataset_coordinates

    variables, attrs = cf_encoder(*encode_dataset_coordinates(dataset.drop_encoding()))
    dims_of: dict[str, tuple[str, ...]] = {}
    for name, variable in variables.items():
        values, said, dims_of[name] = variable.values, dict(variable.attrs), variable.dims
        if values.dtype.kind in "OU" and name in variable.dims:
            values = values.astype(object)
        elif values.dtype.kind in "OU":  # text of any length is not compressed, arrays of characters are
            texts = np.char.encode(values.astype(str), "utf-8")
            width = max(texts.dtype.itemsize, 1)
            values = texts.astype(f"S{width}")[..., np.newaxis].view("S1")
            dims_of[name], said["_Encoding"] = (*variable.dims, f"string{width}"), "utf-8"
        whole_piece = {"chunks": values.shape, "compression": level, "shuffle": values.dtype.kind != "S"}  # files are read whole
        place = group.create_dataset(name, data=values, **(whole_piece if values.size and values.dtype.kind != "O" and values.ndim else {}))
        _say(place, {key: value for key, value in said.items() if key != "_FillValue"})
    sizes = {dim: size for name, dims in dims_of.items() for dim, size in zip(dims, group[name].shape, strict=True)}
    for dim, size in (sizes | dict(dataset.sizes)).items():
        if dim not in group:
            group.create_dataset(dim, (size,), ">f4")
        group[dim].make_scale(dim if dim in dims_of else f"This is a netCDF dimension but not a netCDF variable.{size:10}")
    for name, dims in dims_of.items():
        for i, dim in enumerate(dims if name not in dims else ()):
            group[name].dims[i].attach_scale(group[dim])
    _say(group, attrs)


def _say(place: Any, attrs: Mapping[str, Any]) -> None:
    for name, value in attrs.items():
        short = isinstance(value, str) and value.isascii() and 0 < len(value) < LONGEST_FIXED
        place.attrs[name] = np.bytes_(value) if short else value


def write_netcdf(path: Path, dataset: Any) -> None:
    """Write an xarray.Dataset, whole or not at all. Raises OSError."""
    content = netcdf_content({"/": dataset})
    with replacing(path) as temporary:
        temporary.write_bytes(content)
