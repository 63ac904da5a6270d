"""A table that grows row by row and keeps no more than a bound of it in memory: the rest lies in an unnamed temporary file."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from array import array
from collections.abc import Iterable
from typing import IO

import numpy as np
from numpy.typing import NDArray

BUFFER_BYTES = 32 * 2**20


class SpillingTable:
    """Rows of `width` float64 values. Raises OSError when the temporary file cannot take them."""

    def __init__(self, width: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.width = width
        self._buffer = array("d")
        self._most = max(buffer_bytes // self._buffer.itemsize, 1)
        self._file: IO[bytes] | None = None
        self._rows = 0

    def append(self, row: Iterable[float]) -> None:
        """Add one row, of `width` values."""
        self._buffer.extend(row)
        if len(self._buffer) >= self._most:
            self._flush()

    def table(self) -> NDArray[np.float64]:
        """All rows so far, shape [rows, width]; what has been spilt is mapped from the file, not read."""
        if self._file is None:
            return np.frombuffer(self._buffer, dtype=np.float64).reshape(-1, self.width)
        self._flush()
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)  # stays when the file is closed
        return np.frombuffer(mapped, dtype=np.float64).reshape(self._rows, self.width)

    def _flush(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="simctl-")  # noqa: SIM115 (lives as long as the table)
            weakref.finalize(self, self._file.close)
        self._rows += len(self._buffer) // self.width
        self._buffer.tofile(self._file)
        self._buffer = array("d")
