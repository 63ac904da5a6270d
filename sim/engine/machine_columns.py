"""Named tuples of arrays as machine code has them: the address of a list of words, two for an array, its address and its items.

numba takes such a tuple apart at every call, which takes longer than small functions do, and makes half of the compiler's work. The words
do not change while the code runs: what is read of them once need not be read again after a write.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import typeof, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model
from numba.np.arrayobj import populate_array

WORD = ir.IntType(64)


class Columns(types.Type):  # type: ignore[misc]
    """Type of a tuple of arrays of one dimension, and of such tuples: one for all of a class, whose arrays are then of the same types."""

    def __init__(self, columns: Any) -> None:
        self.columns: dict[str, Any] = {}
        self.places: dict[str, int] = {}
        self.words = 0
        for field, column in columns._asdict().items():
            inner = isinstance(column, tuple)
            self.columns[field] = kind = Columns(column) if inner else typeof(column)
            self.places[field] = self.words
            self.words += kind.words if inner else 2
        super().__init__(name=type(columns).__name__)


register_model(Columns)(models.OpaqueModel)


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Columns

    def generic_resolve(self, columns: Columns, field: str) -> Any:
        return columns.columns.get(field)


@lower_getattr_generic(Columns)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, columns: Columns, value: Any, field: str) -> Any:
    kind = columns.columns[field]
    words = builder.bitcast(value, WORD.as_pointer())

    def at(place: int) -> Any:
        return builder.gep(words, [ir.Constant(ir.IntType(32), columns.places[field] + place)])

    def read(place: int) -> Any:
        word = builder.load(at(place))
        word.set_metadata("invariant.load", builder.module.add_metadata([]))
        return word

    if isinstance(kind, Columns):
        return builder.bitcast(at(0), value.type)
    array = context.make_array(kind)(context, builder)
    item = ir.Constant(WORD, kind.dtype.bitwidth // 8 if hasattr(kind.dtype, "bitwidth") else kind.dtype.size)
    populate_array(array, builder.inttoptr(read(0), array.data.type), [read(1)], [item], item, None)
    return array._getvalue()
