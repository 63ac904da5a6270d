"""Every kind of hostile input by its name."""

from tests.hostile.kinds import OF_INPUTS
from tests.hostile.results_kinds import OF_RESULTS

KINDS = {**OF_INPUTS, **OF_RESULTS}
