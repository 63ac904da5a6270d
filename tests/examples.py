"""How many examples a property is tried with: a third of them in `make test`, all in `make test-all`."""

import os

ALL = os.environ.get("EXAMPLES") == "all"


def examples(number: int) -> int:
    """`number`, or a third of it."""
    return number if ALL else -(-number // 3)
