"""Import the samplers without the notices they print about their own future, and have them compile to the same arithmetic everywhere."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from sim.errors import SimctlError
from sim.extras import install_hint


class MissingSamplerError(SimctlError):
    """A sampler package is absent."""

    def __init__(self, name: str) -> None:
        super().__init__(f"calibration needs {name.partition('.')[0]}: {install_hint('calibrate')}")


PACKAGES = ("pymc", "arviz", "nutpie", "threadpoolctl")


def check_samplers() -> None:
    """Raises MissingSamplerError for a package that is absent, before any work is done; imports none of them."""
    for name in PACKAGES:
        if find_spec(name) is None:
            raise MissingSamplerError(name)


@cache
def pymc() -> ModuleType:
    """The pymc module. ImportError becomes an error that names the extra to install."""
    return _load("pymc")


@cache
def arviz() -> ModuleType:
    """The arviz module, which compiles nothing of its own: a variance of a few thousand draws is had sooner than compiled."""
    module = _load("arviz")
    if hasattr(module, "Numba"):  # up to 0.23; later ones compile nothing unless asked
        module.Numba.disable_numba()
    return module


@cache
def tensor() -> ModuleType:
    """pytensor.tensor: the array namespace that the formula runs in."""
    return _load("pytensor.tensor")


@contextmanager
def exact() -> Iterator[None]:
    """While a model is compiled: additions are not reordered by the compiler.

    PyTensor lets it by default, and then the last digits hang on what is inlined where: on the level of optimisation, and on whether
    functions were compiled just now or read from the cache of an earlier run. A figure must not depend on the state of a cache.
    """
    with _load("pytensor").config.change_flags(numba__fastmath=False):
        yield


@cache
def _linear_algebra() -> Any:
    return _load("threadpoolctl").ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, linear algebra runs on one thread: products of a thousand rows by thirty take longer to share out than to add up (a fit four
    times as long), and how they are shared, which hangs on the number of cores, changes their last digits.
    """
    with _linear_algebra().limit(limits=1):
        yield


@cache
def nutpie() -> ModuleType:
    """The nutpie module."""
    return _load("nutpie")


def _load(name: str) -> ModuleType:
    import importlib

    # numba reads it when it is imported. With `exact` all levels give the same digits; 1 compiles faster than 3, and runs no slower.
    os.environ.setdefault("NUMBA_OPT", "1")
    try:
        with warnings.catch_warnings():
            # arviz announces its refactoring and numba its renamings on import; nothing a user can act on
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingSamplerError(name) from error
