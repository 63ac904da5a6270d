"""Names people type, matched to names we know: spelling-insensitive keys, and errors that suggest."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from sim.errors import UsageError


def key(name: str) -> str:
    """Lower case, letters and digits only, dots kept between digits: `h100_sxm` = `H100 SXM`, `llama3.1-8b` = `Llama-3.1-8B`."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]", "", name.casefold())


def build_index(entries: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """{key: canonical name} from (canonical name, aliases). Raises ValueError when two entries claim one key."""
    index: dict[str, str] = {}
    for name, aliases in entries:
        for alias in (name, *aliases):
            if index.setdefault(key(alias), name) != name:
                raise ValueError(f"{alias!r} means both {index[key(alias)]!r} and {name!r}")
    return index


def given_path(text: str, suffixes: tuple[str, ...]) -> Path | None:
    """`text` as a path when it is meant as one: it has one of the suffixes, starts like a path, or exists. Else None."""
    if not text.strip() or "\0" in text or len(text) > 4095:
        return None
    if text.endswith(suffixes) or text.startswith((".", "/", "~")) or os.path.exists(text):
        return Path(os.path.expanduser(text))
    return None


def did_you_mean(name: str, known: Collection[str], most: int = 1, cutoff: float = 0.6, index: Mapping[str, str] | None = None) -> str:
    """`; did you mean 'A10'?`, or nothing when nothing is close to one of the names `known`, or of an `index` from keys (`key`) to names.

    At the most `most` of them, each of a ratio (difflib) to `name` from `cutoff` up.
    """
    import difflib

    by_key = {key(each): each for each in known} if index is None else index
    close = difflib.get_close_matches(key(name), by_key, n=12 * most if most > 1 else 1, cutoff=cutoff)  # several keys may be of one name
    names = list(dict.fromkeys(by_key[each] for each in close))[:most]
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def _chips(name: str) -> set[str]:
    """The words of a card's name that say its silicon: h100, 4090, mi300x. Sizes of memory are none, nor round numbers (RTX 5000), which
    each generation uses again; the letter O among digits is a zero.
    """
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=\d)o|o(?=\d)", "0", name.casefold()))
    return {word for word in words if re.fullmatch(r"[a-z]{0,3}\d{2,}[a-z]?", word) and not re.fullmatch(r"\d+g|\d[05]00", word)}


def unknown(kind: str, name: str, index: Mapping[str, str], names: Collection[str], more: str = "") -> UsageError:
    """The error for a name that is not in the catalogue: a suggestion, for cards one of the same silicon, then what is known."""
    if kind == "GPU":
        index = {key(known): known for known in names if _chips(name) & _chips(known)}
    hint = did_you_mean(name, (), index=index, cutoff=0.0 if kind == "GPU" else 0.6) or ";"
    short = name if len(name) <= 80 else name[:77] + "..."
    return UsageError(f"unknown {kind} {short!r}{hint} known: {', '.join(names)}{more}")
