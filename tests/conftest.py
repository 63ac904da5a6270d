"""How files of tests are dealt out to the workers of `make test`: those that share a costly set-up go to the same one.

No property has a deadline, and none fails for being drawn slowly: how long a test takes is the machine's affair.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Compiling one of these models takes a worker about ten seconds, whoever asks for it first (tests/calibrate/conftest.py).
SHARED = {
    "tests/calibrate/test_censored_knees_are_compared_fairly.py": "knees and memory",
    "tests/calibrate/test_every_model_is_calibrated_by_simulation.py": "knees and memory",
    "tests/calibrate/test_kv_blocks_are_predicted_from_memory.py": "knees and memory",
    # what tests/report/results.py saves, in eight seconds
    "tests/report/test_a_run_outside_its_noise_says_so.py": "reports",
    "tests/report/test_bands_are_the_draws.py": "reports",
    "tests/report/test_browsers_draw_every_picture.py": "reports",
    "tests/report/test_every_picture_is_a_file_too.py": "reports",
    "tests/report/test_report_refuses_in_one_line.py": "reports",
    "tests/report/test_reports_are_whole_and_fetch_nothing.py": "reports",
    "tests/report/test_reports_escape_what_they_show.py": "reports",
    "tests/report/test_sliders_simulate_again.py": "reports",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files as they are with --dist loadfile, but for those that share something."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySetUp(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return SHARED.get(path, path)

    return BySetUp(config, log)


def pytest_configure() -> None:
    # a script that starts this in the background has it ignore Ctrl-C, and so would every program that a test starts
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert all((Path(__file__).parents[1] / path).exists() for path in SHARED), "a file that shares something is not there"
