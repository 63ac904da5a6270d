"""A user's YAML adds GPUs; every field is checked, and a wrong one is a one-line error that names it."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.rates.priors import priors
from sim.specs.gpus import get_gpu, load_gpus, parse_gpus
from sim.specs.precision import Precision

GOOD = {
    "name": "Mine",
    "memory_bytes": 24e9,
    "memory_bandwidth": 700e9,
    "flops": {"fp16": 100e12},
    "host_link_bandwidth": 31.5e9,
}


def write(tmp_path, data, name="my.yaml"):
    file = tmp_path / name
    file.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(file)


def test_one_card(tmp_path):
    file = write(tmp_path, GOOD)
    gpu = get_gpu(file)
    assert (gpu.name, gpu.memory_bandwidth, dict(gpu.flops), gpu.origin) == ("Mine", 700e9, {"fp16": 100e12}, file)
    assert gpu.gpu_link_bandwidth is None


def test_several_cards(tmp_path):
    other = GOOD | {"name": "Other", "aliases": ["second"]}
    for data in ([GOOD, other], {"gpus": [GOOD, other]}):
        file = write(tmp_path, data)
        assert [gpu.name for gpu in load_gpus(tmp_path / "my.yaml")] == ["Mine", "Other"]
        assert get_gpu(f"{file}:second").name == "Other"
        with pytest.raises(UsageError, match="holds 2 GPUs; say which"):
            get_gpu(file)
        with pytest.raises(UsageError, match=r"unknown GPU 'Third'.* known: Mine, Other"):
            get_gpu(f"{file}:Third")


def test_numbers_as_people_write_them(tmp_path):
    """YAML 1.1 reads 3.35e12 and 1e9 as text; people mean numbers."""
    file = write(
        tmp_path, "name: Mine\nmemory_bytes: 80e9\nmemory_bandwidth: 3.35e12\nflops: {fp16: 1e15}\nhost_link_bandwidth: 63_000_000_000\n"
    )
    gpu = get_gpu(file)
    assert (gpu.memory_bytes, gpu.memory_bandwidth, gpu.flops["fp16"], gpu.host_link_bandwidth) == (80e9, 3.35e12, 1e15, 63e9)


def test_catalogue_name_in_a_file_gets_no_published_rates(tmp_path):
    """A file may call its card H100; what was measured on the real one is not said of it."""
    mine = get_gpu(write(tmp_path, GOOD | {"name": "H100"}))
    published, own = priors(get_gpu("H100"), Precision()), priors(mine, Precision())
    assert "published" in published["beta"].basis
    assert "datasheet" in own["beta"].basis
    assert own["beta"].sigma > published["beta"].sigma


@pytest.mark.parametrize("field", sorted(GOOD))
def test_missing_field(field, tmp_path):
    with pytest.raises(UsageError, match=f"field '{field}' is missing"):
        get_gpu(write(tmp_path, {k: v for k, v in GOOD.items() if k != field}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"memory_bytes": -1}, "field 'memory_bytes' must be > 0"),
        ({"memory_bytes": 0}, "field 'memory_bytes' must be > 0"),
        ({"memory_bytes": 1e30}, "field 'memory_bytes' must be > 0 and at most"),
        ({"memory_bytes": float("nan")}, "field 'memory_bytes' must be a number"),
        ({"memory_bytes": float("inf")}, "field 'memory_bytes' must be > 0 and at most"),
        ({"memory_bytes": True}, "field 'memory_bytes' must be a number"),
        ({"memory_bytes": "24 GB"}, "field 'memory_bytes' must be a number, not '24 GB'"),
        ({"memory_bytes": [1]}, "field 'memory_bytes' must be a number"),
        ({"memory_bandwith": 1}, "field 'memory_bandwith' is unknown; did you mean 'memory_bandwidth'"),
        ({"origin": "catalogue"}, "field 'origin' is unknown"),
        ({3: 4}, "field '3' is unknown"),
        ({"flops": {}}, "field 'flops' must name at least one of"),
        ({"flops": 1e12}, "field 'flops' must be a mapping"),
        ({"flops": {"fp17": 1e12}}, r"field 'flops\.fp17' is unknown; did you mean 'fp"),
        ({"flops": {"fp16": -1}}, r"field 'flops\.fp16' must be > 0"),
        ({"flops": {"fp16": None}}, r"field 'flops\.fp16' is missing"),
        ({"unified_memory": "yes please"}, "field 'unified_memory' must be true or false"),
        ({"price_per_hour": -3}, "field 'price_per_hour' must be > 0"),
        ({"price_date": "last year"}, "field 'price_date' must be YYYY-MM"),
        ({"aliases": "x"}, "field 'aliases' must be a list"),
        ({"name": 5}, "field 'name' must be text"),
        ({"name": " - "}, "field 'name' must not be empty"),
    ],
)
def test_wrong_field(change, says, tmp_path):
    file = write(tmp_path, GOOD | change)
    with pytest.raises(UsageError, match=says) as caught:
        get_gpu(file)
    assert str(caught.value).startswith(f"{file}: field")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a mapping"),
        ("just text", "must be a mapping"),
        ("[]", "no GPU in it"),
        ("gpus: []", "no GPU in it"),
        ("{gpus: [], extra: 1}", "field 'extra' is unknown"),
        ("name: [", "line 2 not YAML"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("\x07", "not YAML"),
    ],
)
def test_not_a_datasheet(text, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        get_gpu(write(tmp_path, text))


def test_same_name_twice(tmp_path):
    with pytest.raises(UsageError, match="'Mine' is given twice"):
        load_gpus(Path(write(tmp_path, [GOOD, GOOD])))
    with pytest.raises(UsageError, match="'aliases': 'Mine' means both"):
        load_gpus(Path(write(tmp_path, [GOOD, GOOD | {"name": "Other", "aliases": ["Mine"]}])))


def test_absent_file(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.yaml: No such file"):
        get_gpu(str(tmp_path / "absent.yaml"))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=6)


@given(name=st.sampled_from([*GOOD, "gpu_link_bandwidth", "price_date", "aliases", "note"]), junk=anything)
def test_any_field_replaced_by_anything_is_read_or_refused(name, junk):
    try:
        (gpu,) = parse_gpus(GOOD | {name: junk}, "toy", "toy")
    except UsageError:
        return
    assert gpu.memory_bytes > 0
    assert all(value > 0 for value in gpu.flops.values())


@given(anything)
def test_any_document_is_read_or_refused(document):
    with pytest.raises(UsageError):
        parse_gpus(document, "toy", "toy")
