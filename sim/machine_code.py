"""Machine code of plain functions: their syntax trees as LLVM's assembly, for the little of Python that the engine in rows is written in.

Numbers are 64-bit integers and doubles. A record of a numpy array is its address, and so is an array of one dimension; a named tuple of
arrays is the address of a list of their addresses, which do not change while the code runs. Other tuples are their items. A function is
translated once for every kind of its arguments, and again until its variables have kinds that hold all that they are given. Integers
divide as Python's do, and give 0 where Python would raise.
"""

from __future__ import annotations

import ast
import inspect
import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

INT, FLOAT, TRUTH = "i64", "double", "i1"
_OF_INT = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "ashr",
}
_OF_FLOAT = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_COMPARED = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_MODULE = """declare double @llvm.pow.f64(double, double)
declare double @llvm.ceil.f64(double)
declare double @llvm.rint.f64(double)
!0 = !{}
"""


class Record(NamedTuple):
    """A record of an array, known by its address."""

    dtype: Any


class Column(NamedTuple):
    """An array of one dimension, known by its address."""

    dtype: Any


class Columns(NamedTuple):
    """A named tuple of arrays or of such tuples: [field] its name, its place in the list of addresses and its kind."""

    fields: tuple[tuple[str, int, Any], ...]
    words: int


class Items(NamedTuple):
    """A tuple of a class."""

    of: Any
    kinds: tuple[Any, ...]


class Value(NamedTuple):
    """What an expression is: its kind, and what LLVM calls it; of a tuple its items; of what is known already, that and no kind."""

    kind: Any
    text: Any


class Untranslatable(Exception):
    """A function is written in more of Python than is translated."""


def columns_of(value: Any) -> Columns:
    """The kind of a named tuple of arrays."""
    fields, words = [], 0
    for name, each in value._asdict().items():
        kind = columns_of(each) if isinstance(each, tuple) else Column(each.dtype)
        fields.append((name, words, kind))
        words += kind.words if isinstance(kind, Columns) else 1
    return Columns(tuple(fields), words)


def assembly(function: Any, kinds: Sequence[Any], instead: Mapping[Any, Any], among: Collection[Any]) -> str:
    """LLVM's assembly of `int64 from_block(int64 *block)`, which calls a function with the addresses in a block, of these kinds.

    `instead` names what is translated in place of functions; none is but `among` these.
    """
    program = Program(instead, among)
    name, kind = program.function(function, tuple(kinds))
    assert kind == INT, kind
    loads = "".join(f"  %p{i} = getelementptr i64, ptr %block, i64 {i}\n  %a{i} = load ptr, ptr %p{i}\n" for i in range(len(kinds)))
    passed = ", ".join(f"ptr %a{i}" for i in range(len(kinds)))
    entry = f"define i64 @from_block(ptr %block) {{\n{loads}  %result = call i64 @{name}({passed})\n  ret i64 %result\n}}\n"
    return "\n".join([_MODULE, *program.tables.values(), *program.texts, entry])


class Program:
    """The functions translated so far, with what they name."""

    def __init__(self, instead: Mapping[Any, Any], among: Collection[Any]) -> None:
        self.instead, self.among = instead, among
        self.texts: list[str] = []
        self.tables: dict[int, str] = {}  # arrays that functions read as globals
        self._made: dict[Any, tuple[str, Any]] = {}

    def function(self, function: FunctionType, kinds: tuple[Any, ...]) -> tuple[str, Any]:
        """The name and the result's kind of a function for such arguments."""
        key = function, kinds
        if function not in self.among:
            raise Untranslatable(f"{function.__module__}.{function.__name__} is not among the functions that are compiled")
        if key not in self._made:
            body, name = _Body(self, function), f"{function.__name__}.{len(self._made)}"
            self._made[key] = name, None  # there is no recursion
            text = body.translated(name, kinds)
            self._made[key] = name, body.result
            self.texts.append(text)
        return self._made[key]

    def table(self, values: Any) -> str:
        """The name of a constant array of doubles."""
        items = ", ".join(f"double {_double(each)}" for each in values)
        self.tables.setdefault(id(values), f"@table.{len(self.tables)} = internal constant [{len(values)} x double] [{items}]")
        return self.tables[id(values)].split()[0]


class _Body:
    """A function on its way to assembly."""

    def __init__(self, program: Program, function: FunctionType) -> None:
        self.program, self.names, self.tree = program, function.__globals__, _tree(function)
        self.defaults = function.__defaults__ or ()
        self.kinds: dict[str, Any] = {}  # of variables
        self.result: Any = None
        self.where = f"{function.__module__}.{function.__name__}"

    def translated(self, name: str, kinds: tuple[Any, ...]) -> str:
        """Its text, once all variables have room."""
        parameters = [each.arg for each in self.tree.args.args]
        while True:
            self.lines: list[str] = []
            self.loops: list[tuple[str, str]] = []
            self.count, self.spares, self.same = 0, 0, True
            passed, begun = [], 0
            for parameter, kind in zip(parameters, kinds, strict=True):
                leaves = _leaves(kind)
                passed += [f"{each} %a{begun + i}" for i, each in enumerate(leaves)]
                self.store(parameter, _built(kind, iter(f"%a{begun + i}" for i in range(len(leaves)))))
                begun += len(leaves)
            self.block(self.tree.body)
            self.lines.append("  ret void" if self.result is None else "  unreachable")
            if self.same:
                break
        room = [f'  %"{leaf}" = alloca {kind}' for each, of in self.kinds.items() for leaf, kind in _named(each, of)]
        begin = f"define internal {_result(self.result)} @{name}({', '.join(passed)}) nounwind {{"
        return "\n".join([begin, *room, *self.lines, "}\n"])

    # text

    def fail(self, node: ast.AST, why: str) -> NoReturn:
        raise Untranslatable(f"{self.where}, line {getattr(node, 'lineno', '?')}: {why}: {ast.unparse(node)}")

    def new(self, text: str) -> str:
        """A name for what an instruction gives."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"l{self.count}"

    def go(self, label: str) -> None:
        self.lines.append(f"  br label %{label}")

    def at(self, label: str) -> None:
        self.lines.append(f"{label}:")

    # values

    def load(self, name: str) -> Value:
        """A variable."""
        kind = self.kinds[name]
        return _built(kind, iter([self.new(f'load {each}, ptr %"{leaf}"') for leaf, each in _named(name, kind)]))

    def store(self, name: str, value: Value) -> None:
        """Give a variable a value, and, if need be, another kind."""
        kind = INT if value.kind == TRUTH else value.kind
        if name in self.kinds and (wider := _joined(self.kinds[name], kind)) != self.kinds[name]:
            self.same = False
            self.kinds[name] = wider
        kind = self.kinds.setdefault(name, kind)
        texts = _texts(self.as_kind(value, kind))
        for (leaf, each), text in zip(_named(name, kind), texts, strict=True):
            self.lines.append(f'  store {each} {text}, ptr %"{leaf}"')

    def as_kind(self, value: Value, kind: Any) -> Value:
        """A value as one of another kind that holds it."""
        if value.kind == kind:
            return value
        if isinstance(kind, Items):
            return Value(kind, [self.as_kind(each, of) for each, of in zip(value.text, kind.kinds, strict=True)])
        if kind == INT and value.kind == TRUTH:
            return Value(INT, self.new(f"zext i1 {value.text} to i64"))
        if kind == FLOAT and value.kind in (INT, TRUTH):
            value = self.as_kind(value, INT)
            if value.text.lstrip("-").isdigit():
                return Value(FLOAT, _double(float(value.text)))
            return Value(FLOAT, self.new(f"sitofp i64 {value.text} to double"))
        raise Untranslatable(f"{self.where}: {value.kind} where {kind} is needed")

    def truth(self, value: Value) -> str:
        if value.kind == TRUTH:
            return str(value.text)
        return self.new(f"icmp ne i64 {value.text}, 0" if value.kind == INT else f"fcmp une double {self.as_kind(value, FLOAT).text}, 0.0")

    def memory(self, dtype: Any, address: str) -> Value:
        """What an address holds."""
        if dtype.kind == "f":
            return Value(FLOAT, self.new(f"load double, ptr {address}, align 1"))
        bits = 8 * dtype.itemsize
        loaded = self.new(f"load i{bits}, ptr {address}, align 1")
        return Value(INT, loaded if bits == 64 else self.new(f"{'sext' if dtype.kind == 'i' else 'zext'} i{bits} {loaded} to i64"))

    def write(self, dtype: Any, address: str, value: Value) -> None:
        kind, bits = FLOAT if dtype.kind == "f" else INT, 8 * dtype.itemsize
        text = self.as_kind(value, kind).text
        if kind == INT and bits < 64:
            text = self.new(f"trunc i64 {text} to i{bits}")
        written = kind if bits == 64 else f"i{bits}"
        self.lines.append(f"  store {written} {text}, ptr {address}, align 1")

    # expressions

    def value(self, node: ast.AST) -> Value:
        """What an expression is."""
        found: Value = getattr(self, f"_{type(node).__name__.lower()}", self._else)(node)
        return found

    def _else(self, node: ast.AST) -> NoReturn:
        self.fail(node, "not translated")

    def known(self, what: Any) -> Value:
        """Something that is there before the code runs."""
        if isinstance(what, bool | int | np.integer):
            return Value(INT, str(int(what)))
        if isinstance(what, float):
            return Value(FLOAT, _double(what))
        if isinstance(what, np.ndarray):
            return Value(Column(what.dtype), self.program.table(what))
        return Value(None, what)

    def _constant(self, node: ast.Constant) -> Value:
        return self.known(node.value)

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.kinds:
            return self.load(node.id)
        if node.id in self.names:
            return self.known(self.names[node.id])
        builtins: Any = self.names["__builtins__"]
        found = builtins.get(node.id) if isinstance(builtins, dict) else getattr(builtins, node.id, None)
        return Value(None, found) if found is not None else self.fail(node, "unknown here")

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        if isinstance(base.text, ModuleType):
            return self.known(getattr(base.text, node.attr))
        if isinstance(base.kind, Items):
            found: Value = base.text[base.kind.of._fields.index(node.attr)]
            return found
        if isinstance(base.kind, Record):
            return self.memory(*self.field(base, node.attr))
        place, kind = next((place, kind) for name, place, kind in base.kind.fields if name == node.attr)
        address = self.new(f"getelementptr i64, ptr {base.text}, i64 {place}")
        return Value(kind, address if isinstance(kind, Columns) else self.new(f"load ptr, ptr {address}, !invariant.load !0"))

    def field(self, base: Value, name: str) -> tuple[Any, str]:
        """Type and address of a record's field."""
        dtype, offset = base.kind.dtype.fields[name][:2]
        return dtype, self.new(f"getelementptr i8, ptr {base.text}, i64 {offset}")

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        if isinstance(base.kind, Items):
            found: Value = base.text[ast.literal_eval(node.slice)]
            return found
        dtype, address = self.element(node, base)
        return Value(Record(dtype), address) if dtype.names else self.memory(dtype, address)

    def element(self, node: ast.Subscript, base: Value) -> tuple[Any, str]:
        """Type and address of an array's item."""
        dtype, index = base.kind.dtype, self.as_kind(self.value(node.slice), INT).text
        return dtype, self.new(f"getelementptr [{dtype.itemsize} x i8], ptr {base.text}, i64 {index}")

    def _tuple(self, node: ast.Tuple) -> Value:
        return self.items(tuple, [self.value(each) for each in node.elts])

    def items(self, of: Any, values: list[Value]) -> Value:
        values = [self.as_kind(each, INT) if each.kind == TRUTH else each for each in values]
        return Value(Items(of, tuple(each.kind for each in values)), values)

    def _binop(self, node: ast.BinOp) -> Value:
        return self.combined(node, node.op, self.value(node.left), self.value(node.right))

    def combined(self, node: ast.AST, op: ast.operator, a: Value, b: Value) -> Value:
        """The result of an operator."""
        kind = FLOAT if FLOAT in (a.kind, b.kind) or isinstance(op, ast.Div) else INT
        a, b = self.as_kind(a, kind), self.as_kind(b, kind)
        if kind == INT and type(op) in _OF_INT:
            return Value(kind, self.new(f"{_OF_INT[type(op)]} i64 {a.text}, {b.text}"))
        if kind == INT and isinstance(op, ast.FloorDiv | ast.Mod):
            return self.divided(isinstance(op, ast.Mod), a.text, b.text)
        if kind == FLOAT and type(op) in _OF_FLOAT:
            return Value(kind, self.new(f"{_OF_FLOAT[type(op)]} double {a.text}, {b.text}"))
        if kind == FLOAT and isinstance(op, ast.Pow):
            return Value(kind, self.new(f"call double @llvm.pow.f64(double {a.text}, double {b.text})"))
        return self.fail(node, f"not of {kind}")

    def divided(self, rest: bool, a: str, b: str) -> Value:
        """The quotient rounded down, or the rest, which has the divisor's sign."""
        none = self.new(f"icmp eq i64 {b}, 0")
        by = self.new(f"select i1 {none}, i64 1, i64 {b}")
        left, sign = self.new(f"srem i64 {a}, {by}"), None
        sign = self.new(f"xor i64 {left}, {by}")
        down = self.new(f"and i1 {self.new(f'icmp ne i64 {left}, 0')}, {self.new(f'icmp slt i64 {sign}, 0')}")
        if rest:
            found = self.new(f"add i64 {left}, {self.new(f'select i1 {down}, i64 {by}, i64 0')}")
        else:
            found = self.new(f"sub i64 {self.new(f'sdiv i64 {a}, {by}')}, {self.new(f'zext i1 {down} to i64')}")
        return Value(INT, self.new(f"select i1 {none}, i64 0, i64 {found}"))

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return Value(TRUTH, self.new(f"xor i1 {self.truth(value)}, true"))
        if not isinstance(node.op, ast.USub):
            self.fail(node, "not translated")
        if value.kind == FLOAT:
            return Value(FLOAT, self.new(f"fneg double {value.text}"))
        text = self.as_kind(value, INT).text
        return Value(INT, str(-int(text)) if text.lstrip("-").isdigit() else self.new(f"sub i64 0, {text}"))

    def _compare(self, node: ast.Compare) -> Value:
        values, found = [self.value(each) for each in (node.left, *node.comparators)], []
        for op, a, b in zip(node.ops, values, values[1:], strict=False):
            kind = FLOAT if FLOAT in (a.kind, b.kind) else INT
            found.append(self.new(f"{_how(kind, _COMPARED[type(op)])} {kind} {self.as_kind(a, kind).text}, {self.as_kind(b, kind).text}"))
        whole = found[0]
        for each in found[1:]:
            whole = self.new(f"and i1 {whole}, {each}")
        return Value(TRUTH, whole)

    def _boolop(self, node: ast.BoolOp) -> Value:
        name, end = self.spare(), self.label()
        for each in node.values:
            value = self.value(each)
            self.store(name, value)
            more = self.label()
            if each is not node.values[-1]:
                yes, no = (more, end) if isinstance(node.op, ast.And) else (end, more)
                self.lines.append(f"  br i1 {self.truth(value)}, label %{yes}, label %{no}")
                self.at(more)
        self.go(end)
        self.at(end)
        return self.load(name)

    def spare(self) -> str:
        """A variable that no name of the function is."""
        self.spares += 1
        return f".{self.spares}"

    def _ifexp(self, node: ast.IfExp) -> Value:
        name, yes, no, end = self.spare(), self.label(), self.label(), self.label()
        self.branch(node.test, yes, no)
        for label, each in ((yes, node.body), (no, node.orelse)):
            self.at(label)
            self.store(name, self.value(each))
            self.go(end)
        self.at(end)
        return self.load(name)

    def branch(self, test: ast.AST, yes: str, no: str) -> None:
        """Go where a condition says."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.branch(test.operand, no, yes)
        elif isinstance(test, ast.BoolOp):
            for each in test.values[:-1]:
                more = self.label()
                self.branch(each, *((more, no) if isinstance(test.op, ast.And) else (yes, more)))
                self.at(more)
            self.branch(test.values[-1], yes, no)
        else:
            self.lines.append(f"  br i1 {self.truth(self.value(test))}, label %{yes}, label %{no}")

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "type":
            return Value(None, self.value(node.args[0]).kind.of)
        called, given = self.value(node.func).text, [self.value(each) for each in node.args]
        called = self.program.instead.get(called, called) if isinstance(called, FunctionType) else called
        if isinstance(called, FunctionType):
            return self.called(called, given)
        if isinstance(called, type) and issubclass(called, tuple):
            return self.items(called, given)
        if called in (min, max):
            return self.extreme(called is min, given)
        if called is float:
            return self.as_kind(given[0], FLOAT)
        if called in (int, round, math.ceil):
            return self.whole(called, given[0])
        return self.fail(node, "not translated")

    def called(self, function: FunctionType, given: list[Value]) -> Value:
        """The result of a function."""
        missing = function.__code__.co_argcount - len(given)
        given = given + [self.known(each) for each in (function.__defaults__ or ())[len(function.__defaults__ or ()) - missing :]]
        given = [self.as_kind(each, INT) if each.kind == TRUTH else each for each in given]
        name, kind = self.program.function(function, tuple(each.kind for each in given))
        texts = [f"{of} {text}" for each in given for of, text in zip(_leaves(each.kind), _texts(each), strict=True)]
        call = f"call {_result(kind)} @{name}({', '.join(texts)})"
        if kind is None:
            self.lines.append(f"  {call}")
            return Value(None, None)
        whole = self.new(call)
        if not isinstance(kind, Items):
            return Value(kind, whole)
        return _built(kind, iter([self.new(f"extractvalue {_result(kind)} {whole}, {i}") for i in range(len(_leaves(kind)))]))

    def extreme(self, least: bool, given: list[Value]) -> Value:
        """Of equals the first, as Python says."""
        kind = FLOAT if any(each.kind == FLOAT for each in given) else INT
        found, how = self.as_kind(given[0], kind).text, _how(kind, "lt" if least else "gt")
        for each in given[1:]:
            other = self.as_kind(each, kind).text
            found = self.new(f"select i1 {self.new(f'{how} {kind} {other}, {found}')}, {kind} {other}, {kind} {found}")
        return Value(kind, found)

    def whole(self, how: Callable[..., Any], value: Value) -> Value:
        """A number as an integer."""
        if value.kind != FLOAT:
            return self.as_kind(value, INT)
        rounded = {round: "rint", math.ceil: "ceil"}.get(how)
        text = self.new(f"call double @llvm.{rounded}.f64(double {value.text})") if rounded else value.text
        return Value(INT, self.new(f"fptosi double {text} to i64"))

    # statements

    def block(self, body: Sequence[ast.stmt]) -> None:
        for each in body:
            getattr(self, f"do_{type(each).__name__.lower()}", self._else)(each)

    def do_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def do_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def assign(self, target: ast.AST, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.store(target.id, value)
        elif isinstance(target, ast.Tuple):
            for each, item in zip(target.elts, value.text, strict=True):
                self.assign(each, item)
        else:
            self.write(*self.place(target), value)

    def place(self, target: ast.AST) -> tuple[Any, str]:
        """Type and address of what is assigned to."""
        if isinstance(target, ast.Attribute):
            return self.field(self.value(target.value), target.attr)
        if isinstance(target, ast.Subscript):
            return self.element(target, self.value(target.value))
        return self.fail(target, "not assigned to")

    def do_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.store(node.target.id, self.combined(node, node.op, self.load(node.target.id), self.value(node.value)))
            return
        place = self.place(node.target)
        old = self.memory(*place)
        self.write(*place, self.combined(node, node.op, old, self.value(node.value)))

    def do_if(self, node: ast.If) -> None:
        yes, no, end = self.label(), self.label(), self.label()
        self.branch(node.test, yes, no)
        for label, body in ((yes, node.body), (no, node.orelse)):
            self.at(label)
            self.block(body)
            self.go(end)
        self.at(end)

    def do_while(self, node: ast.While) -> None:
        head, body, end = self.label(), self.label(), self.label()
        self.go(head)
        self.at(head)
        self.branch(node.test, body, end)
        self.at(body)
        self.looped(node, head, end)

    def looped(self, node: ast.While | ast.For, again: str, end: str) -> None:
        """The body of a loop."""
        self.loops.append((again, end))
        self.block(node.body)
        self.loops.pop()
        self.go(again)
        self.at(end)

    def do_for(self, node: ast.For) -> None:
        if not (isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range") or node.orelse:
            self.fail(node, "not a range")
        given = [self.as_kind(self.value(each), INT).text for each in node.iter.args]
        start, stop, step = (["0", *given] if len(given) == 1 else given) + ["1"] * (3 - max(len(given), 2))
        name, head, body, more, end = self.spare(), self.label(), self.label(), self.label(), self.label()
        self.store(name, Value(INT, start))
        self.go(head)
        self.at(head)
        goes = f"icmp {'sgt' if int(step) < 0 else 'slt'} i64 {self.load(name).text}, {stop}"
        self.lines.append(f"  br i1 {self.new(goes)}, label %{body}, label %{end}")
        self.at(more)
        self.store(name, Value(INT, self.new(f"add i64 {self.load(name).text}, {step}")))
        self.go(head)
        self.at(body)
        self.assign(node.target, self.load(name))
        self.looped(node, more, end)

    def do_continue(self, _node: ast.Continue) -> None:
        self.go(self.loops[-1][0])
        self.at(self.label())

    def do_break(self, _node: ast.Break) -> None:
        self.go(self.loops[-1][1])
        self.at(self.label())

    def do_return(self, node: ast.Return) -> None:
        if node.value is None:
            self.lines.append("  ret void")
        else:
            value = self.value(node.value)
            kind = INT if value.kind == TRUTH else value.kind
            wider = kind if self.result is None else _joined(self.result, kind)
            self.same, self.result = self.same and self.result in (None, wider), wider
            value = self.as_kind(value, wider)
            if isinstance(wider, Items):
                whole = "undef"
                for i, (of, text) in enumerate(zip(_leaves(wider), _texts(value), strict=True)):
                    whole = self.new(f"insertvalue {_result(wider)} {whole}, {of} {text}, {i}")
                self.lines.append(f"  ret {_result(wider)} {whole}")
            else:
                self.lines.append(f"  ret {_result(wider)} {value.text}")
        self.at(self.label())


def _how(kind: Any, compared: str) -> str:
    """The comparison of two numbers: one that is none differs from all."""
    if kind == FLOAT:
        return f"fcmp {'u' if compared == 'ne' else 'o'}{compared}"
    return f"icmp {'' if compared in ('eq', 'ne') else 's'}{compared}"


def _joined(a: Any, b: Any) -> Any:
    """The kind that holds values of two."""
    if a == b:
        return a
    if {a, b} == {INT, FLOAT}:
        return FLOAT
    if isinstance(a, Items) and isinstance(b, Items) and a.of is b.of:
        return Items(a.of, tuple(map(_joined, a.kinds, b.kinds)))
    raise Untranslatable(f"one variable is {a} and {b}")


def _leaves(kind: Any) -> list[str]:
    """What LLVM calls the kinds of a value's parts."""
    if isinstance(kind, Items):
        return [leaf for each in kind.kinds for leaf in _leaves(each)]
    return [kind if isinstance(kind, str) else "ptr"]


def _named(name: str, kind: Any) -> list[tuple[str, str]]:
    """The parts of a variable, with their kinds."""
    leaves = _leaves(kind)
    return [(name, leaves[0])] if not isinstance(kind, Items) else [(f"{name}.{i}", each) for i, each in enumerate(leaves)]


def _built(kind: Any, texts: Any) -> Value:
    """A value of its parts."""
    return Value(kind, [_built(each, texts) for each in kind.kinds] if isinstance(kind, Items) else next(texts))


def _texts(value: Value) -> list[str]:
    """The parts of a value."""
    return [text for each in value.text for text in _texts(each)] if isinstance(value.kind, Items) else [value.text]


def _result(kind: Any) -> str:
    if kind is None:
        return "void"
    return "{" + ", ".join(_leaves(kind)) + "}" if isinstance(kind, Items) else _leaves(kind)[0]


def _double(value: float) -> str:
    """A double as LLVM writes it, to the last digit."""
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


@cache
def _trees(module: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions of a file, by their names and first lines."""
    found = ast.walk(ast.parse(module))
    return {(each.name, each.lineno): each for each in found if isinstance(each, ast.FunctionDef)}


def _tree(function: FunctionType) -> ast.FunctionDef:
    lines, _ = inspect.findsource(function)
    return _trees("".join(lines))[function.__name__, function.__code__.co_firstlineno]
