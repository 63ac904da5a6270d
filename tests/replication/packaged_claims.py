"""The packaged claims as objects: what the studies worked out, without working it out again."""

from simctl.commands.replicate_command import worked_out
from studies.replication.claims import Claim


def claims(report):
    """Of one report, or of `all`, in the order of the list."""
    return [
        Claim(**{name: value for name, value in row.items() if name != "report"})
        for row in worked_out()["claims"]
        if report in (row["report"], "all")
    ]
