"""PyTensor graphs of single numbers, printed as Python: what a compiler makes of one loop of plain arithmetic takes it two seconds, of
PyTensor's own functions, each of them compiled apart, most of a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, expm1, log, log1p, sqrt
from typing import Any

from calibrate import backend

# What printed statements call.
NAMES: dict[str, Any] = {"exp": exp, "expm1": expm1, "inf": float("inf"), "log": log, "log1p": log1p, "nan": float("nan"), "sqrt": sqrt}
_INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "EQ": "==", "NEQ": "!=", "LT": "<", "GT": ">", "LE": "<=", "GE": ">="}
_CALLED = {"Exp": "exp", "Log": "log", "Log1p": "log1p", "Expm1": "expm1", "Sqrt": "sqrt", "Minimum": "min", "Maximum": "max"}
_WRITTEN = {"Neg": "-{0}", "Sqr": "{0} * {0}", "Abs": "abs({0})", "Switch": "{1} if {0} else {2}", "Second": "{1}", "Identity": "{0}"}


def compiled(source: str, name: str) -> Callable[..., Any]:
    """The function `name` of printed source, compiled on its first call. It holds no lock, and rounds as written: with what compilers may
    do to sums, digits would hang on their versions.
    """
    names = dict(NAMES)
    exec(source, names)
    function: Callable[..., Any] = backend.numba().njit(nogil=True, error_model="numpy")(names[name])
    return function


class Printer:
    """Prints statements, each of which gives a new name to one operation; equal ones are printed once.

    Powers go through a logarithm, which several of one base share, and divisions through a reciprocal: last digits differ from PyTensor's.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[str, str] = {}
        self._less_one: dict[str, str] = {}

    def take(self) -> list[str]:
        """The statements printed since the last time."""
        lines, self.lines = self.lines, []
        return lines

    def print(self, outputs: Sequence[Any], inputs: Mapping[Any, str]) -> list[str]:
        """The names (or numbers) of outputs, computed from inputs of these names. Raises TypeError for an operation not known here."""
        from pytensor.graph.fg import FunctionGraph
        from pytensor.graph.rewriting.utils import rewrite_graph

        backend.tensor()  # before anything else of PyTensor is imported: it takes its settings then
        simple: Any = rewrite_graph(list(outputs), include=("canonicalize", "stabilize", "specialize"))
        return self._nodes(FunctionGraph(list(inputs), simple, clone=False), dict(inputs))

    def _nodes(self, graph: Any, names: dict[Any, str]) -> list[str]:
        def called(variable: Any) -> str:
            return names[variable] if variable in names else repr(float(variable.data))

        for node in graph.toposort():
            operation = getattr(node.op, "scalar_op", node.op)
            names[node.outputs[0]] = self._operation(operation, [called(v) for v in node.inputs])
        return [called(v) for v in graph.outputs]

    def _operation(self, operation: Any, args: list[str]) -> str:
        kind = type(operation).__name__
        if special := getattr(self, f"_{kind.lower()}", None):
            return str(special(operation, *args))
        if kind in _INFIX:
            out = self._new(f" {_INFIX[kind]} ".join(args))
            if kind == "Add" and len(args) == 2 and "-1.0" in args:
                self._less_one[out] = args[args.index("-1.0") - 1]
            elif kind == "Sub" and args[1] == "1.0":
                self._less_one[out] = args[0]
            return out
        if kind in _CALLED:
            return self._new(f"{_CALLED[kind]}({', '.join(args)})")
        if kind in _WRITTEN:
            return self._new(_WRITTEN[kind].format(*args))
        raise TypeError(f"PyTensor's {kind} is not known to this printer")

    def _new(self, text: str) -> str:
        if text not in self._known:
            self._known[text] = f"t{len(self._known)}"
            self.lines.append(f"{self._known[text]} = {text}")
        return self._known[text]

    def _composite(self, operation: Any, *args: str) -> str:
        graph = operation.fgraph
        return self._nodes(graph, dict(zip(graph.inputs, args, strict=True)))[0]

    def _sigmoid(self, operation: Any, x: str) -> str:
        falling = self._new(f"exp({self._new(f'-{x}')})")
        return self._reciprocal(operation, self._new(f"1.0 + {falling}"))

    def _softplus(self, operation: Any, x: str) -> str:
        return self._new(f"max({x}, 0.0) + log1p(exp(-abs({x})))")

    def _log1mexp(self, operation: Any, x: str) -> str:
        return self._new(f"log(-expm1({x}))")

    def _reciprocal(self, _: Any, x: str) -> str:
        return self._new(f"1.0 / {x}")

    def _truediv(self, operation: Any, over: str, under: str) -> str:
        one = self._reciprocal(operation, under)
        return one if over == "1.0" else self._new(f"{over} * {one}")

    def _pow(self, operation: Any, base: str, power: str) -> str:
        plain: dict[str, Callable[[], str]] = {
            "-1.0": lambda: self._reciprocal(operation, base),
            "0.5": lambda: self._new(f"sqrt({base})"),
            "2.0": lambda: self._new(f"{base} * {base}"),
        }
        if power in plain:
            return plain[power]()
        if power in self._less_one:  # as derivatives of powers are
            return self._new(f"{self._pow(operation, base, self._less_one[power])} * {self._reciprocal(operation, base)}")
        return self._new(f"exp({power} * {self._new(f'log({base})')})")
