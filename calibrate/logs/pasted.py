"""Summaries that people paste: llama-bench's table, GuideLLM's tables, and a line such as "41 tok/s on 4 x 3090".

Each becomes a closed loop of its clients with the stated means (calibrate.logs.bench_means); what the text does not say is assumed in a
note. Printed blocks of `vllm bench serve` and SGLang are read there, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from calibrate.logs.bench_means import ONLY_MEANS, bench_summary, printed_summary
from calibrate.logs.requests import LoggedRequest, ServedLog, assemble
from sim.errors import UsageError

REQUESTS = 20  # of a closed loop of one client
PROMPT, OUTPUT = 512, 256  # tokens, where a line does not say them
NAME = "the pasted summary"
RATE = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(?:output |generated )?(?:tok(?:en)?s?|t)\s*(?:/|per )\s*s(?:ec(?:ond)?)?\b", re.IGNORECASE)
CARDS = re.compile(
    r"\bon\s+(?:(\d{1,3})\s*[x×]\s*)?(?:an?\s+)?((?:RTX\s*|GTX\s*)?[A-Za-z]{0,7}\s?-?\d[\w.-]*(?:[\s-](?:Ti|SXM5?|PCIe|Super|\d+GB))*)",
    re.IGNORECASE,
)
USERS = re.compile(r"\b(?:with|for|at)\s+(\d{1,5})\s+(?:users|clients|streams|concurrent|requests)\b", re.IGNORECASE)
BENCH_ROW = re.compile(
    r"^\|(?:[^|\n]*\|)+\s*((?:pp\d+)?(?:\s*\+\s*)?(?:tg\d+)?)(?:\s*@\s*d(\d+))?\s*\|\s*(\d+(?:\.\d+)?)\s*(?:±[^|\n]*)?\|", re.MULTILINE
)
GUIDE = re.compile(r"^\s*(synchronous|concurrent@?\d*|constant@[\d.]+|poisson@[\d.]+|throughput)\s*\|(.+)$", re.MULTILINE)


class Cards(NamedTuple):
    """GPUs that a line names."""

    gpu: str
    tp: int


def cards_of(text: str) -> Cards | None:
    """GPUs of a line such as "41 tok/s on 4 x 3090"; None where it names none."""
    match = CARDS.search(text) if RATE.search(text) else None
    return Cards(match[2].strip(), int(match[1] or 1)) if match else None


def is_pasted(text: str) -> bool:
    """Whether a text is a summary that someone pasted."""
    return printed_summary(text) is not None or bool(
        BENCH_ROW.search(text) or _guides(text) or ("\n" not in text.strip() and RATE.search(text))
    )


def pasted_log(text: str, given: Mapping[str, Any], name: str = NAME) -> ServedLog | None:
    """A pasted summary as a log; None for another text. `given` may have the `clients`. UsageError for one that lacks what it needs."""
    if (printed := printed_summary(text)) is not None:
        return bench_summary(name, printed, given)
    if rows := BENCH_ROW.findall(text):
        return _llama_bench(name, rows)
    if guides := _guides(text):
        return _guidellm(name, guides, given)
    if "\n" not in text.strip() and (match := RATE.search(text)):
        users = USERS.search(text)
        clients = given.get("clients") or (int(users[1]) if users else 1)
        each_s = clients / float(match[1].replace(",", ""))
        note = f"prompts of {PROMPT} tokens and answers of {OUTPUT} are assumed; clients where the line says them, else one"
        return _loop(name, "a line", clients, PROMPT, OUTPUT, {"tpot_s": each_s}, [note])
    return None


def _llama_bench(name: str, rows: list[tuple[str, str, str]]) -> ServedLog:
    """llama-bench's table: ppN is a prompt of N tokens, tgN an answer of N tokens, t/s."""
    stated: dict[str, float] = {}
    prompt, output = 1, 1
    for test, _, rate in rows:
        both = re.fullmatch(r"(?:pp(\d+))?(?:\s*\+\s*)?(?:tg(\d+))?", test)
        if both is None or float(rate) <= 0:
            continue
        if both[1] and not both[2] and "ttft_s" not in stated:
            prompt, stated["ttft_s"] = int(both[1]), int(both[1]) / float(rate)
        if both[2] and not both[1] and "tpot_s" not in stated:
            output, stated["tpot_s"] = int(both[2]), 1.0 / float(rate)
    if not stated:
        raise UsageError(f"{name}: llama-bench's table has neither a ppN nor a tgN test")
    note = "llama-bench has no server: the first tests of prompt and answer, one after the other"
    return _loop(name, "llama-bench", 1, prompt, output, stated, [note])


def _guides(text: str) -> list[tuple[str, list[str]]]:
    return [(each, [cell.strip() for cell in rest.split("|")]) for each, rest in GUIDE.findall(text)]


def _guidellm(name: str, rows: list[tuple[str, list[str]]], given: Mapping[str, Any]) -> ServedLog:
    """GuideLLM's printed tables "Benchmarks Info" (tokens per request, columns 6 and 9) and "Benchmarks Stats" (TTFT and ITL in ms)."""
    info = next(((each, cells) for each, cells in rows if any(":" in cell for cell in cells[:2])), None)
    stats = next((cells for each, cells in rows if info and each == info[0] and not any(":" in cell for cell in cells[:2])), None)
    if info is None or stats is None or len(stats) < 13 or len(info[1]) < 10:
        raise UsageError(f"{name}: GuideLLM's tables Benchmarks Info and Benchmarks Stats are both needed; or give its JSON")
    try:
        prompt, output = round(float(info[1][6])), round(float(info[1][9]))
        concurrency, ttft, itl = float(stats[1]), float(stats[7]) / 1e3, float(stats[10]) / 1e3
    except ValueError:
        raise UsageError(f"{name}: a cell of GuideLLM's tables is no number") from None
    clients = given.get("clients") or max(1, round(concurrency))
    said = [f"the first benchmark ({info[0]}), as a closed loop of its concurrency"]
    return _loop(name, "GuideLLM's tables", clients, prompt, output, {"ttft_s": ttft, "tpot_s": itl}, said)


def _loop(name: str, source: str, clients: int, prompt: int, output: int, stated: dict[str, float], notes: list[str]) -> ServedLog:
    """A closed loop of stated means; what is not stated is taken as nothing."""
    ttft, each = stated.get("ttft_s", stated.get("tpot_s", 0.0)), stated.get("tpot_s", 0.0)
    if not all(math.isfinite(value) and 0 < value < 1e4 for value in stated.values()):
        raise UsageError(f"{name}: states a time that is none")
    count = max(REQUESTS, 2 * clients)
    seen = [LoggedRequest(f"{name}: request {i}", math.nan, prompt, output, ttft, ttft + (output - 1) * each) for i in range(count)]
    return assemble(seen, name=name, source=source, notes=[ONLY_MEANS, *notes], clients=clients, stated=stated)
