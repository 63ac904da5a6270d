"""Storage of a weight matrix: bits of its elements, and the scales and zero points beside them."""

from __future__ import annotations

from typing import NamedTuple

from sim.specs.blocks import Matrix


class Storage(NamedTuple):
    """Storage of a matrix. Groups of `rows` x `columns` elements (0: the whole of that side) share a scale and a zero point.

    `dtype` is the precision, by the names of `sim.specs.precision`, that its products are priced as. `tensor_bytes` are paid once a
    matrix, `column_bytes` for every input channel.
    """

    dtype: str
    bits: float
    rows: int = 1
    columns: int = 0
    scale_bytes: float = 0.0
    zero_bits: float = 0.0
    tensor_bytes: float = 0.0
    column_bytes: float = 0.0

    @property
    def kernel(self) -> str:
        """The storage format that kernels are chosen by: its dtype, but for blocks of fp8."""
        return "fp8-block" if self.dtype == "fp8" and self.rows > 1 and self.columns > 1 else self.dtype

    def bytes_of(self, matrix: Matrix) -> float:
        """Bytes of all `copies` of the matrix."""
        if not matrix.elements:
            return 0.0
        groups = -(-matrix.rows // (self.rows or matrix.rows)) * -(-matrix.columns // (self.columns or matrix.columns))
        one = matrix.rows * matrix.columns * self.bits / 8 + groups * (self.scale_bytes + self.zero_bits / 8)
        return matrix.copies * (one + self.tensor_bytes + matrix.columns * self.column_bytes)


PLAIN = Storage("bf16", 16)
FP8_TENSOR = Storage("fp8", 8, 0, 0, scale_bytes=4)
FP8_STATIC = FP8_TENSOR._replace(tensor_bytes=4)  # and the scale of its input
FP8_CHANNEL = Storage("fp8", 8, 1, 0, scale_bytes=4)
INT8_CHANNEL = Storage("int8", 8, 1, 0, scale_bytes=4)
MXFP8 = Storage("fp8", 8, 1, 32, scale_bytes=1)
MXFP4 = Storage("mxfp4", 4, 1, 32, scale_bytes=1)
NVFP4 = Storage("nvfp4", 4, 1, 16, scale_bytes=1, tensor_bytes=8)  # scales of the tensor and of its input


def fp8_blocks(rows: int, columns: int, scale_bytes: float = 4) -> Storage:
    """DeepSeek's: one scale for each block of `rows` x `columns`."""
    return Storage("fp8", 8, rows, columns, scale_bytes)


def integers(bits: int, group: int, zeros: bool, scale_bytes: float = 2, order: bool = False) -> Storage:
    """Weight-only integers of 16-bit arithmetic (AWQ, GPTQ, compressed-tensors): one 16-bit scale a group of input channels, with a zero
    point of `bits` where `zeros`; `order` is GPTQ's 32-bit group number of every input channel. Group <= 0 is a whole row.
    """
    dtype = "w8a16" if bits > 4 else "int4"
    return Storage(dtype, bits, 1, max(group, 0), scale_bytes, bits * zeros, column_bytes=4.0 * order)
