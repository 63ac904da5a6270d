"""`simctl replicate`: the published reports behind this project, claim by claim."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from sim.files import package_path
from simctl.text.claims_text import VERDICTS, interval
from simctl.text.layout import fill

NAMES = ("tr164", "gb10", "brl07", "routing", "gdn", "all")


@click.command("replicate")
@click.argument("report", type=click.Choice(NAMES))
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON on stdout.")
def command(report: str, as_json: bool) -> None:
    """Answer a published report claim by claim: what it says, what we get, and whether the two agree.

    tr164: batch knees. gb10: two engines on a GB10. brl07: sparse long context. routing: agents on eight replicas. gdn: gated delta net.

    `reproduced` figures follow from the report's own tables; `within` are those of our formula, simulator or measurement, as near as the
    list of targets asks, or inside our interval; `differs` are neither, contradictions inside a report among them; `not testable` says why.

    A second letter marks what is no entry of that list: P is predicted at rates of data that does not show it, M measured again on our GPUs
    (within 10 % of theirs), S simulated. Intervals are 5-95 %, of our first figure. With several figures `within` wants each inside its
    own; (out) marks one that is not.

    \b
    Examples:
      simctl replicate tr164
      simctl replicate all --json > claims.json
      simctl report claims.json -o claims.html
    """
    answers = worked_out()
    found = [claim for claim in answers["claims"] if report in (claim["report"], "all")]
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for claim in found:
        head = f"{claim['name']:<5}{claim['verdict']:<12}  "
        click.echo(fill(f"{head}{claim['published']}", later=" " * len(head), whole=True))
        between = interval(claim)
        for line in (f"{claim['how']}: {claim['ours']}", *([f"90 % interval: {between}"] if between else [])):
            click.echo(fill(line, first=" " * len(head), later=" " * len(head), whole=True))
    counts = Counter(claim["verdict"] for claim in found)
    click.echo(f"\n{len(found)} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    click.echo(f"worked out on {answers['date']} by simctl {answers['version']}")


def worked_out() -> dict[str, Any]:
    """`claims` as `make rates` last worked them out (studies.replicated), in the order of the list; their `date` and simctl's `version`."""
    found: dict[str, Any] = json.loads(package_path("scenarios", "data", "replicated.json").read_text(encoding="utf-8"))
    return found
