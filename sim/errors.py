"""The two ways an answer can fail, as exceptions, and what every program says and returns for a failure that it expects."""

from dataclasses import fields
from typing import Any

INTERRUPTED = 130


class SimctlError(Exception):
    """The input was well formed but the model or a check says no. Exit code 1."""

    exit_code = 1


class UsageError(SimctlError, ValueError):
    """The input itself is wrong (unknown name, absurd number, malformed file). Exit code 2."""

    exit_code = 2


def require_not_negative(record: Any, what: str, kind: str, unit: str = "") -> None:
    """Raise UsageError unless every field of a dataclass is finite and >= 0, naming the field `what` it is of, and the `kind` asked for."""
    for field in fields(record):
        value = getattr(record, field.name)
        if not 0.0 <= value < float("inf"):
            raise UsageError(f"{what} {field.name} must be a finite {kind} >= 0, got {value:g}{unit}")


def ending(error: BaseException) -> tuple[int, str]:
    """(exit code, the one line to say) for an expected failure.

    An error of the command line's own parser is known by its `format_message`, so that no such parser is imported here; what is none of
    these is an interruption.
    """
    if isinstance(error, SimctlError):
        code, text = error.exit_code, str(error)
    elif isinstance(error, OSError):
        code, text = 1, f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    elif (message := getattr(error, "format_message", None)) is not None:
        code, text = UsageError.exit_code, message()
    else:
        code, text = INTERRUPTED, "interrupted"
    return code, " ".join(text.split())
