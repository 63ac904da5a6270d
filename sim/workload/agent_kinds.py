"""A mixture of kinds of agents, as a YAML file or plain data says it: a list of kinds with their shares of the sessions.

    - {share: 0.7, opening-len: 7000}
    - {share: 0.3, opening-len: 98000, opening-cv: 0.04, turns: 20, subagents: 0.5, compact-at: 150000}

Keys are those of `Workload.agents`; what a kind leaves out is as for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.specs.fields import Fields
from sim.specs.lookup import did_you_mean
from sim.workload.agent_sessions import AgentSessions

MOST_KINDS = 100
TOKENS = {
    "opening-len": "opening_tokens",
    "input-len": "input_tokens",
    "output-len": "output_tokens",
    "compact-at": "compact_at",
}
NUMBERS = {"turns": "turns"}
FROM_0 = {"opening-cv": "opening_cv", "subagents": "subagents", "think-time": "think_s", "edited-share": "edited_share"}
KEYS = ("share", "prefix-len", *TOKENS, *NUMBERS, *FROM_0)


def read_kinds(kinds: Path | Sequence[Any], usual: AgentSessions) -> tuple[tuple[float, AgentSessions], ...]:
    """(share, kind) each. Raises UsageError naming the kind and the key that is wrong, OSError when the file cannot be read."""
    where, data = "agent kinds", kinds
    if isinstance(kinds, Path):
        from sim.yaml_text import MAX_BYTES, read_yaml

        where = kinds.name
        data = read_yaml(text_of(kinds, MAX_BYTES), where)
    if not isinstance(data, Sequence) or isinstance(data, str) or not 1 <= len(data) <= MOST_KINDS:
        raise UsageError(f"{where}: must be a list of 1 to {MOST_KINDS} kinds of agents")
    return tuple(_kind(Fields(each, f"{where}: kind {number}"), usual) for number, each in enumerate(data))


def _kind(fields: Fields, usual: AgentSessions) -> tuple[float, AgentSessions]:
    fields.only(KEYS, did_you_mean)
    said: dict[str, Any] = {name: fields.int(key) for key, name in TOKENS.items() if fields.has(key)}
    said |= {name: fields.positive(key) for key, name in NUMBERS.items() if fields.has(key)}
    said |= {name: 0.0 if fields.get(key) == 0 else fields.positive(key) for key, name in FROM_0.items() if fields.has(key)}
    if fields.has("prefix-len"):
        said["prefix_tokens"] = fields.int("prefix-len", minimum=0)
    return fields.positive("share"), replace(usual, **said)
