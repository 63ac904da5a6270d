"""Matrices: what a layer multiplies by, named as checkpoints name it, so that each can have its precision."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Matrix(NamedTuple):
    """`copies` weight matrices of [rows, columns] = [outputs, inputs]. `kept` ones are never quantised (routers, small gates).

    `name` is the path inside its layer, as Llama's and DeepSeek's checkpoints spell it; others' spellings are in `module_names`.
    """

    name: str
    rows: int
    columns: int
    copies: int = 1
    kept: bool = False

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.copies

    @property
    def replicated(self) -> bool:
        """Whether every GPU of a tensor-parallel group holds all of it (vLLM's ReplicatedLinear)."""
        return bool(_REPLICATED.search(self.name))


# Projections to latents that all heads share, selectors, and routers.
_REPLICATED = re.compile(r"\.(q_a_proj|kv_a_proj_with_mqa|wq_a|wkv|gate|shared_expert_gate)$|\.(indexer|compressor)\.")


class Absent:
    """A part of a layer that is not there."""

    __slots__ = ()

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        return ()

    def vectors(self, hidden: int) -> int:
        return 0

    def params(self, hidden: int) -> int:
        return 0


def elements(matrices: Iterable[Matrix]) -> int:
    """Parameters of all of them."""
    return sum(matrix.elements for matrix in matrices)
