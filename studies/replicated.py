"""The packaged answers of `simctl replicate`: every claim of the published reports, worked out.

python -m studies.replicated OUT.json        (a step of make rates)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

from sim.files import write_text
from studies.program import program
from studies.replication.reports import REPORTS, claims


def answers() -> list[dict[str, object]]:
    """Every claim, its report first."""
    return [{"report": name} | asdict(claim) for name in REPORTS for claim in claims(name)]


@program("studies.replicated", "OUT.json")
def main(argv: Sequence[str]) -> int:
    """Work them out and write them. Returns the exit code."""
    found = answers()
    packaged = {"date": datetime.now(UTC).date().isoformat(), "version": version("llm-simctl"), "claims": found}
    write_text(argv[0], json.dumps(packaged, indent=1) + "\n")
    print(f"wrote {argv[0]}: {len(found)} claims")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
