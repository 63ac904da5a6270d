"""The formula's fingerprint is stable, and any change of a term or of a constant of sim.cost changes it."""

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import sim.cost
import sim.rates.fingerprint
from sim.cost.step_time import Terms, step_terms
from sim.rates.fingerprint import SOURCES, formula_fingerprint, kept_fingerprint, priced
from studies.ablate import replace_constant

SPECS = [module for name, module in sys.modules.items() if name.startswith("sim.specs.")]  # their constants are not the formula's
MODULES = [importlib.import_module(f"sim.cost.{each.name}") for each in pkgutil.iter_modules(sim.cost.__path__)]


def constants() -> Iterator[tuple[str, str, int | str | None]]:
    """(module, name, place) of every number that a module of sim.cost holds under a name in capitals, in tuples and mappings, too."""
    for module in MODULES:
        for name, value in vars(module).items():
            if name.isupper() and not name.startswith("_") and not any(vars(each).get(name) is value for each in SPECS):
                yield from ((module.__name__, name, place) for place in places(value))


def places(value: object) -> list[object]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [None]
    if isinstance(value, dict):
        return [(key, *inner) for key, each in value.items() for inner in map(tupled, places(each))]
    if isinstance(value, tuple):
        return [(i, *inner) for i, each in enumerate(value) for inner in map(tupled, places(each))]
    return []


def tupled(place: object) -> tuple:
    return () if place is None else place


def perturbed(value, place):
    if not place:
        return value + max(1, value // 50) if isinstance(value, int) else value * 1.02 + 0.02 * (value == 0)
    first, *rest = place
    if isinstance(value, dict):
        return {**value, first: perturbed(value[first], rest)}
    changed = [perturbed(each, rest) if i == first else each for i, each in enumerate(value)]
    return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)


def forget() -> None:
    """What functions of sim remember."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sim."):
            for each in vars(module).values():
                if callable(getattr(each, "cache_clear", None)):
                    each.cache_clear()


@pytest.fixture(autouse=True)
def fresh():
    formula_fingerprint.cache_clear()
    yield
    formula_fingerprint.cache_clear()


def test_it_is_the_same_every_time():
    first = formula_fingerprint()
    formula_fingerprint.cache_clear()
    assert formula_fingerprint() == first


@pytest.mark.parametrize("term", Terms._fields)
def test_a_changed_term_changes_it(term, monkeypatch):
    before = formula_fingerprint()
    formula_fingerprint.cache_clear()

    def altered(*args):
        terms = step_terms(*args)
        return terms._replace(**{term: getattr(terms, term) * (1 + 1e-6)})

    monkeypatch.setattr(sim.rates.fingerprint, "step_terms", altered)
    assert formula_fingerprint() != before


def test_every_constant_of_the_formula_changes_it():
    before, unseen = list(priced()), []
    for module, name, place in constants():
        old = getattr(sys.modules[module], name)
        with ExitStack() as stack:
            replace_constant(stack, name, old, perturbed(old, tupled(place)))
            forget()
            if all(a == b for a, b in zip(priced(), before, strict=True)):
                unseen.append((module, name, place))
    forget()
    assert unseen == []


def test_a_fingerprint_that_is_kept_is_of_these_very_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = kept_fingerprint()
    assert found == formula_fingerprint()
    (kept,) = (tmp_path / "simctl" / "formula").iterdir()
    kept.write_text("f" * 64)
    assert kept_fingerprint() == "f" * 64  # read, not computed
    kept.write_text("damaged")
    assert kept_fingerprint() == found
    monkeypatch.setattr(sim.rates.fingerprint, "_sources", lambda: "of other sources")
    kept.write_text("f" * 64)
    assert kept_fingerprint() == found


def test_all_that_a_fingerprint_is_computed_by_is_among_its_sources():
    code = "import sys; from sim.rates.fingerprint import formula_fingerprint; formula_fingerprint(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    loaded = [name for name in loaded if name.startswith("sim.")]
    beside = {
        "sim.errors",
        "sim.files",
        "sim.termination",
        "sim.shown",
        "sim.rates",
        "sim.units",
        "sim.signals",
    }  # no price comes from these
    places = {f"sim.{place.removesuffix('.py').replace('/', '.')}" for place in SOURCES}
    assert not [name for name in loaded if name not in beside and not any(name == each or name.startswith(f"{each}.") for each in places)]
