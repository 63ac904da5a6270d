"""NetCDF files: written whole or not at all; read so that whatever damaged bytes make the library do becomes one error."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from sim.errors import SimctlError, UsageError
from sim.files import replacing

Value = TypeVar("Value")


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


def netcdf_content(groups: Mapping[str, Any], encodings: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> memoryview:
    """Content of a netCDF-4 file of xarray.Datasets by group ("/": the file itself), with encodings by group and variable.

    It is made in memory: where a disk takes no more, the library ends the process.
    """
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    buffer = BytesIO()
    with h5netcdf.File(buffer, "w", **options) as file:
        for name, dataset in groups.items():
            where = file if name == "/" else file.create_group(name)
            dataset.dump_to_store(H5NetCDFStore(where), encoding=dict((encodings or {}).get(name, {})))
    return buffer.getbuffer()


def write_netcdf(path: Path, dataset: Any) -> None:
    """Write an xarray.Dataset, whole or not at all. Raises OSError."""
    content = netcdf_content({"/": dataset})
    with replacing(path) as temporary:
        temporary.write_bytes(content)
