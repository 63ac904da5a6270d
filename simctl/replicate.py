"""`simctl replicate`: the published reports behind this project, claim by claim."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import click

from simctl.text import fill

NAMES = ("tr164", "gb10", "brl07", "routing", "gdn", "all")
VERDICTS = ("reproduced", "within", "differs", "not testable")


@click.command("replicate")
@click.argument("report", type=click.Choice(NAMES))
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON on stdout.")
def command(report: str, as_json: bool) -> None:
    """Answer a published report claim by claim: what it says, what we get, and whether the two agree.

    tr164: batch knees. gb10: two engines on a GB10. brl07: sparse long context. routing: agents on eight replicas. gdn: gated delta net.

    `reproduced` figures follow from the report's own tables; `within` are those of our formula or simulator, as near as the list of
    targets asks; `differs` are neither, contradictions inside a report among them; `not testable` says why.

    \b
    Examples:
      simctl replicate tr164
      simctl replicate all --json > claims.json
      simctl report claims.json -o claims.html
    """
    from calibrate.replication.reports import REPORTS, claims

    if as_json:
        of = REPORTS if report == "all" else (report,)
        click.echo(json.dumps([{"report": name} | dataclasses.asdict(claim) for name in of for claim in claims(name)], indent=1))
        return
    found = claims(report)
    for claim in found:
        head = f"{claim.name}  {claim.verdict:<12}  "
        click.echo(fill(f"{head}{claim.published}", later=" " * len(head), whole=True))
        click.echo(fill(f"{claim.how}: {claim.ours}", first=" " * len(head), later=" " * len(head), whole=True))
    counts = Counter(claim.verdict for claim in found)
    click.echo(f"\n{len(found)} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
