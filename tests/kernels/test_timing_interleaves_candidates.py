"""What runs long must not stand before what is compared: every candidate gets its repeats, the slow ones after the others."""

import pytest

from kernels import timing


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names in the order they are replayed; a candidate's call gives its name and its seconds."""
    log: list[str] = []

    def replay_s(graph: object) -> float:
        name, seconds = graph()
        log.append(name)
        return seconds

    monkeypatch.setattr(timing, "rounds_for", lambda calls, graph_s: 1)
    monkeypatch.setattr(timing, "capture", lambda calls, rounds=1, warmup=2: calls[0])
    monkeypatch.setattr(timing, "replay_s", replay_s)
    return log


def candidate(name: str, seconds: float) -> list[timing.Work]:
    return [lambda: (name, seconds)]


def test_slow_ones_come_after_all_rounds_of_the_others(replays: list[str]) -> None:
    found = timing.interleaved({"slow": candidate("slow", 9.0), "a": candidate("a", 1.0), "b": candidate("b", 1.9)}, repeats=5)
    rounds = replays[-15:]
    assert rounds[10:] == ["slow"] * 5
    assert {len(times) for times in found.values()} == {5}
    assert all(set(pair) == {"a", "b"} for pair in zip(rounds[:10:2], rounds[1:10:2], strict=True))


def test_the_rounds_are_not_all_in_one_order(replays: list[str]) -> None:
    timing.interleaved({"a": candidate("a", 1.0), "b": candidate("b", 1.0)}, repeats=20)
    assert {tuple(replays[-40:][i : i + 2]) for i in range(0, 40, 2)} == {("a", "b"), ("b", "a")}
