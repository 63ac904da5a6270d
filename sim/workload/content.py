"""Content of a prompt, as far as prefix caching needs it, and names of its KV blocks.

A trace tells the content as token ids, as hashes of blocks of some size, as "the same session, grown", or as a shared
system prompt. Whatever it tells, an engine sees a sequence of names, one for each full KV block of its own block size:
equal names, equal prefixes.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TokenIds:
    """The prompt's token ids and, where a later turn repeats them, the output's."""

    ids: array[int]


@dataclass(frozen=True, slots=True, eq=False)
class BlockHashes:
    """Hashes of consecutive blocks of `block_size` tokens; the last block may be partial.

    A hash is compared together with all before it, so both chained and plain block hashes are read rightly.
    """

    hashes: Sequence[Hashable]
    block_size: int


@dataclass(frozen=True, slots=True)
class Grown:
    """The prompt repeats the first `shared_tokens` tokens of its session's previous turn (prompt, then output)."""

    shared_tokens: int
    of: str = ""  # request id of a call of another session that it repeats instead


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The prompt begins with `tokens` tokens that every prompt of the same `group` begins with."""

    group: str
    tokens: int


Content = TokenIds | BlockHashes | Grown | SystemPrompt


@lru_cache(maxsize=64)
def _ends_in(trace_block: int, block: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[engine block] the trace block in which it ends, and its place there."""
    k = np.arange(count, dtype=np.int64)
    i = ((k + 1) * block - 1) // trace_block
    return i, k - i * trace_block // block


class BlockNamer:
    """Names the full KV blocks of one engine block size. One namer per run: names are equal only within it.

    Names are whole numbers from 0 on, in the order in which blocks are first met: they rise along a prompt.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._tokens: dict[tuple[int, bytes], int] = {}
        self._hashes: dict[tuple[int, int, Hashable], int] = {}
        self._sessions: dict[str, array[int]] = {}
        self._groups: dict[str, array[int]] = {}
        self._systems: dict[tuple[str, int], array[int]] = {}  # of requests that are nothing but a system prompt to others
        self._fresh = 0

    def names(
        self,
        content: Content | None,
        prompt_tokens: int,
        output_tokens: int,
        session_id: str | None = None,
        said: array[int] | None = None,
    ) -> Sequence[int]:
        """Names of the request's full blocks, or () when it shares nothing with any other request. It repeats blocks that were `said`, else
        its session's.
        """
        named: array[int]
        if isinstance(content, TokenIds):
            named = self._from_ids(content.ids)
        elif isinstance(content, BlockHashes):
            named = self._from_hashes(content, prompt_tokens)
        elif isinstance(content, SystemPrompt):
            if session_id is None:  # nobody asks for what follows the system prompt
                key = content.group, min(content.tokens, prompt_tokens)
                if key not in self._systems:
                    self._systems[key] = self._from_system(content, key[1])
                return self._systems[key]
            named = self._from_system(content, prompt_tokens + output_tokens)
        elif session_id is not None:
            before = self._sessions.get(session_id, array("q")) if said is None else said
            shared = content.shared_tokens if isinstance(content, Grown) else 0
            named = self._continued(before, shared, prompt_tokens + output_tokens)
        else:
            return ()
        if session_id is not None and not isinstance(content, TokenIds | BlockHashes):
            self._sessions[session_id] = named
        return named

    def forget(self, session_id: str) -> None:
        """Drop what is kept of a session that has ended."""
        self._sessions.pop(session_id, None)

    def _from_ids(self, ids: array[int]) -> array[int]:
        size, parent, named = self.block_size, -1, array("q")
        for start in range(0, len(ids) - size + 1, size):
            parent = self._name(self._tokens, (parent, ids[start : start + size].tobytes()), 1)
            named.append(parent)
        return named

    def _from_hashes(self, content: BlockHashes, prompt_tokens: int) -> array[int]:
        """Engine block k ends in trace block i = ((k + 1) * block - 1) // trace_block; its name is that block's, plus the position inside
        it. Where an engine block ends in mid trace block, equality asks for the whole trace block: never a false hit.
        """
        trace_block, block, parent, chain = content.block_size, self.block_size, -1, array("q")
        for value in content.hashes:
            parent = self._name(self._hashes, (trace_block, parent, value), -(-trace_block // block))
            chain.append(parent)
        count = min(len(chain) * trace_block, prompt_tokens) // block
        i, place = _ends_in(trace_block, block, 1 << count.bit_length())
        return array("q", (np.frombuffer(chain, dtype=np.int64)[i[:count]] + place[:count]).tobytes())

    def _name(self, table: dict[Any, int], key: Hashable, names: int) -> int:
        """The name of a key, new with so many names where it is not in the table."""
        found = table.setdefault(key, self._fresh)
        if found == self._fresh:
            self._fresh += names
        return found

    def _from_system(self, content: SystemPrompt, tokens: int) -> array[int]:
        shared = min(content.tokens, tokens) // self.block_size
        group = self._groups.setdefault(content.group, array("q"))
        group.extend(self._new(max(shared - len(group), 0)))
        return group[:shared] + self._new(tokens // self.block_size - shared)

    def _continued(self, before: array[int], shared_tokens: int, tokens: int) -> array[int]:
        keep = min(shared_tokens // self.block_size, len(before), tokens // self.block_size)
        return before[:keep] + self._new(tokens // self.block_size - keep)

    def _new(self, count: int) -> array[int]:
        start = self._fresh
        self._fresh += count
        return array("q", np.arange(start, self._fresh, dtype=np.int64).tobytes())
