"""NetCDF files: written whole or not at all; read so that whatever damaged bytes make the library do becomes one error."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def write_netcdf(path: Path, dataset: Any) -> None:
    """Write an xarray.Dataset, whole or not at all. Raises OSError."""
    with replacing(path) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf")
