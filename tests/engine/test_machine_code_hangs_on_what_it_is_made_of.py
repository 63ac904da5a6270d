"""The cache of machine code is named by the code objects and constants that are compiled, not by the text of their files."""

from types import FunctionType

import pytest

from sim.cluster import compiled
from sim.cost import smooth, step_time
from sim.engine.rows import vllm


@pytest.fixture
def named(monkeypatch):
    """The folder's name as it is now."""
    monkeypatch.setattr(compiled, "cache_directory", compiled.cache_directory.__wrapped__)
    return lambda: compiled.cache_directory().name


def edited(function, **changes):
    return FunctionType(function.__code__.replace(**changes), function.__globals__, function.__name__, function.__defaults__)


def test_a_comment_above_and_another_file_change_nothing(monkeypatch, named):
    before = named()
    moved = edited(smooth.smooth_max, co_firstlineno=99, co_filename="elsewhere.py")
    monkeypatch.setattr(compiled, "_FORMULA", (moved, *compiled._FORMULA[1:]))
    assert named() == before


def test_another_exponent_a_constant_and_a_default_do(monkeypatch, named):
    found = {named()}
    first, *rest = compiled._FORMULA
    assert first is smooth.smooth_max
    constants = tuple(2.0 if each == 1.0 else each for each in first.__code__.co_consts)
    assert constants != first.__code__.co_consts
    monkeypatch.setattr(compiled, "_FORMULA", (edited(first, co_consts=constants), *rest))
    found.add(named())
    monkeypatch.setattr(compiled, "_FORMULA", (edited(first), *rest))
    compiled._FORMULA[0].__defaults__ = (2.9,)
    found.add(named())
    monkeypatch.setattr(compiled, "_FORMULA", (first, *rest))
    monkeypatch.setattr(step_time, "LAUNCH_P", 2 * step_time.LAUNCH_P)
    found.add(named())
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "cache_directory", compiled.cache_directory.__wrapped__)
    monkeypatch.setattr(vllm, "NOBODY", -7)
    found.add(named())
    assert len(found) == 5
