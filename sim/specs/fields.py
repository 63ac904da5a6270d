"""Typed access to the fields of a configuration somebody else wrote: every complaint is a UsageError that names the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sim.errors import UsageError

MAX_INT = 2**40  # far above any count a model or a card has; above it the file is wrong, not large


class Fields:
    """A mapping read field by field. `where` (file and section) opens every message. A JSON null counts as absent."""

    def __init__(self, data: object, where: str, prefix: str = "") -> None:
        if not isinstance(data, Mapping):
            raise UsageError(f"{where}: {f'field {prefix!r}' if prefix else 'top level'} must be a mapping of fields")
        self.data: Mapping[str, Any] = data
        self.where = where
        self.prefix = prefix

    def fail(self, name: str, why: str) -> UsageError:
        """The error to raise about one field."""
        path = f"{self.prefix}.{name}" if self.prefix else name
        return UsageError(f"{self.where}: field {path!r} {why}")

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def get(self, name: str) -> Any:
        if not self.has(name):
            raise self.fail(name, "is missing")
        return self.data[name]

    def section(self, name: str) -> Fields:
        return Fields(self.get(name), self.where, f"{self.prefix}.{name}" if self.prefix else name)

    def int(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number in minimum..2**40, or `default` when the field is absent and a default exists."""
        if default is not None and not self.has(name):
            return default
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"must be a whole number, not {value!r}")
        if not minimum <= value <= MAX_INT:
            raise self.fail(name, f"must be in {minimum}..2**40, not {value}")
        return value

    def bool(self, name: str, default: bool) -> bool:
        if not self.has(name):
            return default
        value = self.data[name]
        if not isinstance(value, bool):
            raise self.fail(name, f"must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        if default is not None and not self.has(name):
            return default
        value = self.get(name)
        if not isinstance(value, str):
            raise self.fail(name, f"must be text, not {value!r}")
        return value

    def positive(self, name: str, default: float | None = None, maximum: float = 1e18) -> float:
        """A finite number > 0. `3.35e12` counts although YAML 1.1 reads it as text (it wants `3.35e+12`)."""
        if default is not None and not self.has(name):
            return default
        value = self.get(name)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isnan(number):
            raise self.fail(name, f"must be a number, not {value!r}")
        if not 0 < number <= maximum:
            raise self.fail(name, f"must be > 0 and at most {maximum:g}, not {value!r}")
        return number

    def texts(self, name: str, allowed: Collection[str] | None = None) -> list[str]:
        """A list of strings (empty when absent), each one of `allowed` when given."""
        values = self.data.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise self.fail(name, f"must be a list of texts, not {values!r}")
        for value in values:
            if allowed is not None and value not in allowed:
                raise self.fail(name, f"has unsupported entry {value!r} (supported: {', '.join(sorted(allowed))})")
        return values

    def only(self, known: Collection[str], suggest: Callable[[str, Collection[str]], str]) -> None:
        """Refuse any key outside `known`; `suggest(key, known)` returns a hint such as `; did you mean 'x'?`."""
        for key in self.data:
            if key not in known:
                raise self.fail(str(key), f"is unknown{suggest(str(key), known)}")
