"""Import the samplers without the notices they print about their own future."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

from sim.errors import SimctlError


class MissingSamplerError(SimctlError):
    """A sampler package is absent."""

    def __init__(self, name: str) -> None:
        super().__init__(f"calibration needs {name.partition('.')[0]}: pip install 'llm-simctl[calibrate]'")


@cache
def pymc() -> ModuleType:
    """The pymc module. ImportError becomes an error that names the extra to install."""
    return _load("pymc")


@cache
def arviz() -> ModuleType:
    """The arviz module."""
    return _load("arviz")


@cache
def tensor() -> ModuleType:
    """pytensor.tensor: the array namespace that the formula runs in."""
    return _load("pytensor.tensor")


@cache
def nutpie() -> ModuleType | None:
    """The nutpie module, or None where it is not installed."""
    try:
        return _load("nutpie")
    except MissingSamplerError:
        return None


def _load(name: str) -> ModuleType:
    import importlib

    try:
        with warnings.catch_warnings():
            # arviz announces its refactoring and numba its renamings on import; nothing a user can act on
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingSamplerError(name) from error
