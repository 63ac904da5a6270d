"""Content of a prompt, as far as prefix caching needs it, and names of its KV blocks.

A trace tells the content as token ids, as hashes of blocks of some size, as "the same session, grown", or as a shared
system prompt. Whatever it tells, an engine sees a sequence of names, one for each full KV block of its own block size:
equal names, equal prefixes.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


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


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The prompt begins with `tokens` tokens that every prompt of the same `group` begins with."""

    group: str
    tokens: int


Content = TokenIds | BlockHashes | Grown | SystemPrompt


ROOM = 4 * 2**22  # four origins x more blocks than any context has: names of different parents cannot meet


def spread(chain: array[int], trace_block: int, block: int, count: int) -> array[int]:
    """Names of `count` engine blocks of `block` tokens from the chained names of trace blocks of `trace_block` tokens.

    Engine block k ends in trace block i = ((k + 1) * block - 1) // trace_block; its name joins that block's chained name with the
    position inside it. Where an engine block ends in mid trace block, equality asks for the whole trace block: never a false hit.
    """
    k = np.arange(count, dtype=np.int64)
    i = ((k + 1) * block - 1) // trace_block
    first = i * trace_block // block
    return array("q", (np.frombuffer(chain, dtype=np.int64)[i] * ROOM + 4 * (k - first) + 1).tobytes())


class BlockNamer:
    """Names the full KV blocks of one engine block size. One namer per run: names are equal only within it.

    Names of different origin never collide: each origin (token ids, hashes, sessions, system prompts) has a residue
    modulo 4 of its own.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._tokens: dict[tuple[int, bytes], int] = {}
        self._hashes: dict[tuple[int, int, Hashable], int] = {}
        self._sessions: dict[str, Sequence[int]] = {}
        self._groups: dict[str, int] = {}
        self._systems: dict[tuple[str, int], Sequence[int]] = {}  # of requests that are nothing but a system prompt to others
        self._fresh = 0

    def names(self, content: Content | None, prompt_tokens: int, output_tokens: int, session_id: str | None = None) -> Sequence[int]:
        """Names of the request's full blocks, or () when it shares nothing with any other request."""
        named: Sequence[int]
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
            before = self._sessions.get(session_id, ())
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

    def _from_ids(self, ids: array[int]) -> list[int]:
        size, table, parent, named = self.block_size, self._tokens, -1, []
        for start in range(0, len(ids) - size + 1, size):
            key = (parent, ids[start : start + size].tobytes())
            parent = table.setdefault(key, len(table))
            named.append(4 * parent)
        return named

    def _from_hashes(self, content: BlockHashes, prompt_tokens: int) -> Sequence[int]:
        table, parent, chain = self._hashes, -1, array("q")
        for value in content.hashes:
            parent = table.setdefault((content.block_size, parent, value), len(table))
            chain.append(parent)
        covered = min(len(chain) * content.block_size, prompt_tokens)
        return spread(chain, content.block_size, self.block_size, covered // self.block_size)

    def _from_system(self, content: SystemPrompt, tokens: int) -> list[int]:
        shared = min(content.tokens, tokens) // self.block_size
        group = self._groups.setdefault(content.group, len(self._groups))
        head = [group * ROOM + 4 * k + 2 for k in range(shared)]
        return head + self._new(tokens // self.block_size - shared)

    def _continued(self, before: Sequence[int], shared_tokens: int, tokens: int) -> list[int]:
        keep = min(shared_tokens // self.block_size, len(before), tokens // self.block_size)
        return [*before[:keep], *self._new(tokens // self.block_size - keep)]

    def _new(self, count: int) -> list[int]:
        start = self._fresh
        self._fresh += count
        return [4 * k + 3 for k in range(start, start + count)]
