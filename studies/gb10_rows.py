"""The GB10's published serving rows beside the answers of `simctl simulate`: those that its rates were not learnt from, or all.

    python -m studies.gb10_rows [--all] [ENGINE]

Every other number of clients of an engine and model is learnt from (studies.population.published_gpus). `width` is an interval's upper end
over its lower one.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from studies.field import asked, interval
from studies.population.published_rates import GB10_MODELS
from studies.program import program
from studies.replication.gb10_bursts import ENGINES, FIGURES, MODELS, PROMPT_TAIL, ServedRow, served_rows
from studies.replication.gb10_runs import GENERATED

OURS = {
    "agg_tps": ("output_throughput", "tok/s"),
    "ttft_mean_ms": ("mean_ttft_ms", "TTFT ms"),
}  # decode_agg_tps counts tokens that came before its window
LATE_S = 0.01  # of requests that miss the first decision: later than it, and before the second
HEAD = f"{'engine':9}{'model':6}{'clients':>7}  {'figure':8}{'published':>10}{'answer':>8}{'90 %':>16}{'error':>7}{'width':>6}"


def write_burst(row: ServedRow, path: Path) -> None:
    """The row's requests as a trace: a quarter in time for the first decision, the rest for the second (studies.replication.gb10_runs)."""
    prompt, early = round(row.prompt_tokens / row.clients), max(row.clients // 4, 1)
    lines = (
        {"arrival_s": LATE_S * (number >= early), "prompt_tokens": prompt, "output_tokens": GENERATED} for number in range(row.clients)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def question(row: ServedRow, trace: Path) -> str:
    """Options of `simctl simulate` for a row, its burst a trace."""
    engine = ENGINES[row.engine]
    own = f"--max-num-seqs {row.clients} --max-model-len 1024 --engine-option prompt_tail_tokens={PROMPT_TAIL}"
    return (
        f"--gpu GB10 --engine {engine} --model {GB10_MODELS[row.model]} --dtype nvfp4 "
        f"--trace {shlex.quote(str(trace))} {own if engine == 'llamacpp' else '--max-model-len 4096'}"
    )


@program("studies.gb10_rows")
def main(argv: Sequence[str]) -> int:
    every, engines = "--all" in argv, [word for word in argv if word != "--all"]
    rows = [row for engine in ENGINES for model in MODELS for row in served_rows(engine, model)]
    errors: dict[str, list[float]] = {name: [] for name in OURS}
    widths: list[float] = []
    inside = 0
    print(HEAD)
    for row in rows:
        if (row.learnt and not every) or (engines and ENGINES[row.engine] not in engines):
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_burst(row, trace := Path(folder) / "burst.jsonl")
            answer = asked({"cell": row.engine, "ask": question(row, trace)})
        for name, (figure, words) in OURS.items():
            published, mine, (low, high) = float(row.printed[FIGURES.index(name)]), float(answer[figure]), interval(answer, figure)
            errors[name].append(abs(mine / published - 1))
            widths.append(high / low)
            inside += low <= published <= high
            between = f"{low:.0f} - {high:.0f}"
            print(
                f"{ENGINES[row.engine]:9}{row.model:6}{row.clients:7d}  {words:8}{published:10.0f}{mine:8.0f}{between:>16}"
                f"{mine / published - 1:+7.0%}{high / low:6.1f}"
            )
    for name, (_, words) in OURS.items():
        print(f"{words}: {median(errors[name]):.1%} off (median of {len(errors[name])})")
    print(f"{inside} of {len(widths)} inside; intervals {median(widths):.1f} wide, {max(widths):.1f} at most")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
