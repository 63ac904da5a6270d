"""YAML that somebody else wrote, bounded before it is expanded: what is wrong becomes one error that names the file and the line."""

from __future__ import annotations

from typing import Any

import yaml

from sim.errors import UsageError

MAX_BYTES = 1 << 18
MAX_DEPTH = 16
TOO_DEEP = f"nested more than {MAX_DEPTH} deep"
MAX_BITS = 128
MOST_EXPANDED = 1 << 20  # characters and values, aliases written out
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser takes 5 ms for the GPU catalogue, the other 50 ms


class _Loader(_Base):  # type: ignore[misc]
    """Names the line of a value that cannot be what its tag says; refuses keys given twice, and numbers and texts that nothing
    here could print.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, str):
                value.encode()
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise _wrong(f"a value is no {node.tag.rpartition(':')[2]}", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _wrong(f"a number of more than {MAX_BITS} bits", node.start_mark)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _wrong(f"{key.value!r} stands twice in one mapping", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str, where: str) -> Any:
    """The plain data of a YAML text; `where` opens error messages. Raises UsageError."""
    try:
        _check_expanded(text)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error)
        if "nesting depth" in problem:  # newer C parsers look ahead and have a limit of their own
            problem = TOO_DEEP
        raise UsageError(f"{where}:{line} not YAML: {problem}") from None


def _check_expanded(text: str) -> None:
    """Raises YAMLError for a text that stands for too much, or too deep, with every alias written out: known from its events alone."""
    size = 0
    anchors: dict[str, tuple[int, int]] = {}  # name -> (size, height) of what it stands for
    within: list[tuple[str | None, int, int]] = []  # of each open collection: its anchor, the size before it, the greatest height in it
    for event in yaml.parse(text, Loader=_Loader):
        name, added, height = getattr(event, "anchor", None), 0, 0
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.pop(name or "", None)
            within.append((name, size, 0))
            added = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before, height = within.pop()
            height += 1
            anchors[name or ""] = (size - before, height)
        elif isinstance(event, yaml.ScalarEvent):
            added = 1 + len(event.value)
            anchors[name or ""] = (added, 0)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _wrong(f"alias {event.anchor!r} stands for nothing, or for what holds it", event.start_mark)
            added, height = anchors[event.anchor]
        size += added
        if within:
            anchor, before, highest = within[-1]
            within[-1] = (anchor, before, max(highest, height))
        if len(within) + height > MAX_DEPTH:
            raise _wrong(TOO_DEEP, event.start_mark)
        if size > MOST_EXPANDED:
            raise _wrong("its aliases stand for too much", event.start_mark)


def _wrong(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
