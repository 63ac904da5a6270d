"""The two ways an answer can fail, as exceptions, and what every program says and returns for a failure that it expects."""

from dataclasses import fields
from typing import Any

from sim import termination

INTERRUPTED = 130
LONGEST_WORD, LONGEST_LINE = 500, 1900  # characters


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
    elif isinstance(error, OverflowError):
        code, text = 1, f"a number given is too large to compute with ({error})"
    elif isinstance(error, MemoryError):
        code, text = 1, "not enough memory"
    elif (message := getattr(error, "format_message", None)) is not None:
        code, text = UsageError.exit_code, message()
        if text.startswith("Got unexpected") and (context := getattr(error, "ctx", None)):
            text = f"{text.rstrip('.')}; see {context.command_path} --help"
    else:
        code, text = termination.came() or (INTERRUPTED, "interrupted")
    return code, _one_line(text)


def _one_line(text: str) -> str:
    """Text on one line that any terminal shows: without control characters, and cut in the middle where it quotes a whole file."""
    words = (word if len(word) <= LONGEST_WORD else f"{word[:300]}...{word[-150:]}" for word in text.split())
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in " ".join(words))
    return line if len(line) <= LONGEST_LINE else f"{line[:1200]} ... {line[-600:]}"
