"""The published reports, by the name the command line has for each."""

from __future__ import annotations

from studies.replication import brl07, gb10, gdn, routing, tr164
from studies.replication.claims import Claim

REPORTS = {"tr164": tr164.claims, "gb10": gb10.claims, "brl07": brl07.claims, "routing": routing.claims, "gdn": gdn.claims}


def claims(report: str) -> list[Claim]:
    """Every claim of a report, or of `all`, in the order of the list."""
    return [claim for name, of in REPORTS.items() if report in (name, "all") for claim in of()]
