"""The question of `simctl check`, of its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrate.logs.pasted import cards_of, is_pasted
from calibrate.measured_files import resolved
from calibrate.served.check import Check
from sim.errors import UsageError
from simctl.from_options.logs import reading_of, served_by


def check_of(logs: Sequence[str], options: Mapping[str, Any]) -> Check:
    """The check of these files and texts. A line that names its GPUs needs no --gpu. UsageError for a file that is not there."""
    given: list[str | Path] = []
    for each in logs:
        if is_pasted(each):
            given.append(each)
            if (cards := cards_of(each)) and not options["gpu"]:
                options = {**options, "gpu": cards.gpu, "tp": cards.tp}
        elif any(character in each.strip() for character in "\n ") and not Path(each).exists():
            raise UsageError(
                "neither a file nor a summary that is known: vllm bench serve, SGLang, GuideLLM, llama-bench, or a line with tok/s"
            )
        else:
            given.append(resolved(Path(each)))
    return Check(given, served_by(options), reading_of(options))
