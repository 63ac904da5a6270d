"""Report of a replication: every claim of published reports, with what we get and whether the two agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number
from simctl.text.claims_text import VERDICTS, interval

KEYS = {"report", "name", "published", "ours", "how", "verdict"}
MOST = 250  # claims
MOST_REPORTS = 20
COLUMNS = ("claim", "verdict", "published", "ours", "from", "90 % interval")
MEANING = "Reproduced figures follow from the report's own tables; within are those of our formula, simulator or measurement, as near \
as the list of targets asks, or inside our interval; differs are neither, contradictions inside a report among them; not testable says why."
Claims = Sequence[Mapping[str, Any]]


def part_of(claims: Claims) -> ReportPart:
    """The report of what `simctl replicate --json` prints. Raises KeyError, TypeError or ValueError for anything else."""
    if unknown := {each["verdict"] for each in claims} - set(VERDICTS):
        raise ValueError(cut(sorted(map(str, unknown))[0], 40))
    counts = Counter(each["verdict"] for each in claims)
    heads = [Headline(verdict.capitalize(), f"{counts[verdict]} of {len(claims)}") for verdict in VERDICTS]
    reports = list(dict.fromkeys(cut(each["report"], 30) for each in claims))
    pictures = [_verdicts(claims, counts, reports[:MOST_REPORTS])]
    chosen = [
        (title, [each for each in claims if each["verdict"] == verdict])
        for title, verdict in (("Claims that do not hold", "differs"), ("Claims that nothing here can tell", "not testable"))
    ]
    chosen += [(f"All claims of {name}", [each for each in claims if cut(each["report"], 30) == name]) for name in reports[:MOST_REPORTS]]
    tables = [(title, COLUMNS, [_row(each) for each in islice(some, MOST)]) for title, some in chosen if some]
    named = ", ".join(reports[:MOST_REPORTS])
    question = "Does what was published hold when it is computed again?"
    return ReportPart(f"Replication: {named}", question, [], heads, [MEANING], pictures, tables=tables)


def _verdicts(claims: Claims, counts: Mapping[str, int], reports: Sequence[str]) -> Picture:
    found = Counter((cut(each["report"], 30), each["verdict"]) for each in claims)
    rows = [
        {"name": report, "x": found[report, verdict], "series": verdict}
        for report in reports
        for verdict in VERDICTS
        if found[report, verdict]
    ]
    agree = counts["reproduced"] + counts["within"]
    reading = f"{agree} of {len(claims)} claims hold ({number(100 * agree / len(claims), '%')}); {counts['differs']} do not."
    spec = charts.bars(
        rows,
        charts.axis("claims (number)", zero=True),
        names=VERDICTS,
        colours=[charts.COLOURS[i] for i in (0, 2, 1, 3)],  # what differs is not green
        tooltip=(("name", "report"), ("series", "verdict"), ("x", "claims")),
    )
    table = [[report, *(str(found[report, verdict]) for verdict in VERDICTS)] for report in reports]
    return Picture("verdicts", "Which reports hold?", reading, spec, ("report", *VERDICTS), table)


def _row(claim: Mapping[str, Any]) -> list[str]:
    most = {"name": 20, "verdict": 20, "published": 400, "ours": 600, "how": 20}
    return [*(cut(claim[key], longest) for key, longest in most.items()), cut(interval(claim), 100)]
