"""Nothing is timed on another device than the one asked for, nor beside somebody else's work."""

import click.testing
import pytest

from hw import machine
from hw.command import command
from sim.errors import SimctlError, UsageError

IDLE = {"gpu_name": "NVIDIA H100 80GB HBM3", "gpu_memory_used_mib": "4", "gpu_utilization_pct": "0"}


def test_an_idle_card_of_the_right_name_passes() -> None:
    assert machine.check("cuda", "h100", gpus=[IDLE]) == {"preflight": "idle: 4 MiB used, 0 % busy"}


def test_another_card_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="asked to measure 'a100' but the device is 'NVIDIA H100"):
        machine.check("cuda", "a100", gpus=[IDLE])


@pytest.mark.parametrize("load", [{"gpu_memory_used_mib": "30000"}, {"gpu_utilization_pct": "97"}])
def test_a_busy_card_is_refused(load: dict[str, str]) -> None:
    with pytest.raises(SimctlError, match="is in use"):
        machine.check("cuda", gpus=[IDLE | load])


def test_a_card_that_does_not_report_utilisation_is_judged_by_memory() -> None:
    assert "idle" in machine.check("cuda", gpus=[IDLE | {"gpu_utilization_pct": "[N/A]"}])["preflight"]


def test_a_gpu_name_on_the_cpu_is_refused() -> None:
    with pytest.raises(UsageError, match="the device is the CPU"):
        machine.check("cpu", "h100")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--suite", "nonsense"], "unknown suite 'nonsense'; known: host, floor"),
        (["--suite", "engine-grid"], "needs --model"),
        (["--suite", "engine-grid", "--model", "gpt-9"], "unknown model shape 'gpt-9'; known: qwen2.5-7b"),
        (["--suite", "kernels"], "suite kernels needs a CUDA device"),
        (["--suite", "floor,decode", "--model", "qwen2.5-7b"], "suite decode needs a CUDA device"),
        (["--suite", "products", "--tp", "2"], "suite products takes no --tp and no --quantization; engine-grid"),
        (["--suite", "served", "--model", "tiny-25m", "--client", "text", "--url", "http://x"], "need a server of our own"),
        (["--suite", "floor", "--hw", "tpu"], "unknown device 'tpu'"),
        (["--suite", "served", "--model", "tiny-25m", "--rates", "1,-2"], "--rates wants positive numbers"),
    ],
)
def test_bad_requests_are_named_before_anything_starts(arguments: list[str], says: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments if "--hw" in arguments else ["--hw", "cpu", *arguments]
    result = click.testing.CliRunner().invoke(command, [*arguments, "-o", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_card_that_a_job_just_left_may_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's utilisation still counts the last second: it is asked again, but not for ever."""
    readings = iter(["22", "15", "0"])
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(machine, "query_gpus", lambda: [IDLE | {"gpu_utilization_pct": next(readings, "97")}])
    assert "0 % busy" in machine.check("cuda")["preflight"]
    with pytest.raises(SimctlError, match="is in use"):
        machine.check("cuda")


def test_every_card_of_several_must_be_idle() -> None:
    with pytest.raises(SimctlError, match=r"is in use \(30000 MiB"):
        machine.check("cuda", gpus=[IDLE, IDLE | {"gpu_memory_used_mib": "30000"}])


def test_a_missing_engine_leaves_nothing_behind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "vllm" else find_spec(name, *more))
    for suite in ("engine-grid", "profile", "served"):
        arguments = ["--hw", "cpu", "--suite", suite, "--model", "tiny-25m", "-o", str(tmp_path)]
        result = click.testing.CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, UsageError)
        assert "[engine-cpu]" in str(result.exception)
        assert [p.name for p in tmp_path.iterdir() if p.suffix != ".log"] == []


def test_fewer_gpus_than_asked_for_are_refused() -> None:
    assert "idle" in machine.check("cuda", count=2, gpus=[IDLE, IDLE])["preflight"]
    with pytest.raises(UsageError, match="asked for 2 GPUs; there are 1"):
        machine.check("cuda", count=2, gpus=[IDLE])


def test_a_machine_is_told_from_others_and_not_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    tool = tmp_path / "nvidia-smi"
    fields = "NVIDIA H100 80GB HBM3, {uuid}, 580.1, 81559, 4, 0, 345, 2619, 1980, 70.1, 700.00, 30"
    seen = []
    for uuid in ("GPU-aaaa-1", "GPU-aaaa-1", "GPU-bbbb-2", "[N/A]"):
        tool.write_text(f"#!/bin/sh\necho '{fields.format(uuid=uuid)}'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        (gpu,) = machine.query_gpus()
        assert gpu["gpu_name"] == "NVIDIA H100 80GB HBM3"
        assert uuid not in gpu.values()
        seen.append(gpu["machine"])
    assert seen[0] == seen[1] != seen[2]
    assert len(seen[0]) == 12
    assert seen[3] == ""


def test_what_the_card_says_afterwards_is_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"clock_sm_mhz": "1500", "clock_mem_mhz": "2", "power_w": "600", "power_limit_w": "700", "temperature_c": "50"}
    monkeypatch.setattr(machine, "query_gpus", lambda: [card, card | {"clock_sm_mhz": "1"}])
    assert machine.after("cuda") == {"after_clock_sm_mhz": "1500", "after_power_w": "600", "after_temperature_c": "50"}
    assert machine.after("cpu") == {}


@pytest.mark.parametrize(("names", "found"), [(None, ()), ("", ()), ("1", ("1",)), ("0, 1", ("0", "1")), ("GPU-ab12", ()), ("MIG-1", ())])
def test_only_gpus_named_by_index_are_looked_at(names: str | None, found: tuple[str, ...]) -> None:
    assert machine.visible({} if names is None else {"CUDA_VISIBLE_DEVICES": names}) == found
