"""How files of tests are dealt out to the workers of `make test`: those that compile the same model go to the same one."""

from pathlib import Path
from typing import Any

import pytest

# Compiling one of these models takes a worker about ten seconds, whoever asks for it first (tests/calibrate/conftest.py).
SHARED = {
    "tests/calibrate/test_censored_knees_are_compared_fairly.py": "knees and memory",
    "tests/calibrate/test_every_model_is_calibrated_by_simulation.py": "knees and memory",
    "tests/calibrate/test_kv_blocks_are_predicted_from_memory.py": "knees and memory",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files as they are with --dist loadfile, but for those of one model."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySharedModel(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return SHARED.get(path, path)

    return BySharedModel(config, log)


def pytest_configure() -> None:
    assert all((Path(__file__).parents[1] / path).exists() for path in SHARED), "a file of a shared model is not there"
