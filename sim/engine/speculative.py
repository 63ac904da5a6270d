"""Speculative decoding as the scheduler sees it: how many draft tokens an iteration verifies, and how many of them it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.engine.config import EngineConfig
from sim.engine.host_tier import HOST_NEEDS, HOST_OPTIONS
from sim.engine.versions import rules_of
from sim.errors import UsageError
from sim.specs.draft_heads import HEADS

DRAFTERS = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
KNOWN: dict[str, Any] = {
    "draft_tokens": 0,
    "acceptance": 0.7,
    "acceptance_decay": 1.0,
    "drafter": "ngram",
    "seed": 0,
    "acceptance_per_position": "",
}
# read by sim.engine.registry, sim.engine.host_tier and sim.study.deployment
OF_OTHERS: dict[str, Any] = {
    "async_scheduling": True,
    "decode_pieces": False,
    "verify_s": 0.0,
    "graph_reuse": True,
    "cuda_graph_max_bs": 0,
    "language_model_only": False,
    "warm_prefixes": False,
    "kv_cache_memory_bytes": 0,
    **HOST_OPTIONS,
}
_NEEDS = dict.fromkeys((*KNOWN, "verify_s", "graph_reuse"), ("draft_tokens",)) | HOST_NEEDS


@dataclass(frozen=True, slots=True)
class Speculation:
    """K = `draft_tokens` per decode and iteration (0: none), so that an iteration verifies K + 1 rows of each.

    `acceptance` is the probability that the first draft token is accepted, given all before it are; each further position's is
    `acceptance_decay` times the one before. `per_position` says instead, as engines log it, in which share of the verifications the draft
    at each position was accepted. `drafter` is what proposes them: n-grams of the text, a draft model, or what reads the model's own hidden
    states, an EAGLE head or MTP module. Draws depend on the seed, the request and its progress only, so that runs that schedule differently
    still see the same luck.
    """

    draft_tokens: int = 0
    acceptance: float = 0.7
    acceptance_decay: float = 1.0
    drafter: str = "ngram"
    seed: int = 0
    per_position: tuple[float, ...] = ()
    hashes_next_token: bool = True

    @classmethod
    def of(cls, config: EngineConfig) -> Speculation:
        """The speculation options of a vllm config. Raises UsageError for one that does not exist or is out of range."""
        options = KNOWN | config.own_options(KNOWN | OF_OTHERS, _NEEDS)
        shares = _shares(str(options["acceptance_per_position"]))
        found = cls(
            draft_tokens=options["draft_tokens"],
            acceptance=options["acceptance"],
            acceptance_decay=options["acceptance_decay"],
            drafter=options["drafter"],
            seed=options["seed"],
            per_position=shares,
            hashes_next_token=rules_of(config.engine_version).hashes_next_token,
        )
        if found.drafter not in DRAFTERS:
            raise UsageError(f"unknown drafter {found.drafter!r}; known: {', '.join(DRAFTERS)}")
        if options.get("warm_prefixes") and not config.enable_prefix_caching:
            raise UsageError("warm_prefixes needs prefix caching")
        if found.reads_next_token and options.get("host_blocks"):
            raise UsageError(f"drafter={found.drafter} with KV in host RAM is not modelled; leave one of them out")
        if config.max_num_batched_tokens <= found.drafter_rows:
            raise UsageError("a draft model needs max_num_batched_tokens of at least 2")
        if not 0 <= found.draft_tokens <= 64:
            raise UsageError(f"draft_tokens must lie between 0 and 64, got {found.draft_tokens}")
        if not 0.0 <= found.acceptance <= 1.0 or not 0.0 <= found.acceptance_decay <= 1.0:
            raise UsageError("acceptance and acceptance_decay must lie in [0, 1]")
        if shares and {"acceptance", "acceptance_decay"} & config.options.keys():
            raise UsageError("acceptance_per_position says what acceptance and acceptance_decay say: leave these out")
        if shares and len(shares) != found.draft_tokens:
            raise UsageError(f"acceptance_per_position needs a share for each of {found.draft_tokens} draft tokens, got {len(shares)}")
        return found

    @property
    def lookahead_tokens(self) -> int:
        """KV slots that the drafter writes past the verified rows."""
        return 0 if self.drafter == "ngram" else self.draft_tokens

    @property
    def drafter_rows(self) -> int:
        """Tokens of the budget that each scheduled request leaves to the drafter: a draft model reads the sampled token as well."""
        return int(self.drafter == "draft_model" and self.draft_tokens > 0)

    @property
    def reads_next_token(self) -> bool:
        """Whether the drafter's KV at a block's end depends on the token after the block."""
        return self.drafter in HEADS and self.draft_tokens > 0

    @property
    def drops_last_hit(self) -> bool:
        """Whether the last block of a prefix-cache hit is computed again: its last KV depends on a token that may not follow here."""
        return self.reads_next_token and not self.hashes_next_token

    @property
    def unnamed_tokens(self) -> int:
        """Tokens at the end of what is known that no block can be named without: the one that is part of the block's name."""
        return int(self.reads_next_token and self.hashes_next_token)

    def position_probability(self, position: int) -> float:
        """Probability that the draft at `position` (0 first) is accepted, given that all before it are."""
        if self.per_position:
            before = self.per_position[position - 1] if position else 1.0
            return self.per_position[position] / before if before else 0.0
        return float(self.acceptance * self.acceptance_decay**position)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"acceptance_per_position must be shares with commas between them, got {text!r}") from None
    if not all(1.0 >= one >= other >= 0.0 for one, other in zip((1.0, *shares), shares, strict=False)):
        raise UsageError(f"acceptance_per_position must fall from position to position, from 1 at most to 0 at least, got {text!r}")
    return shares
