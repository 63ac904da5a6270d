"""What a per-request log says of shared prefixes: sessions that grow, or ids of the blocks that a prompt is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.served.replay import Prediction
from calibrate.served.request_log import read_log
from calibrate.served.runs import Experiment, ServedRun, taken
from calibrate.text_files import Row, csv_rows, utf8
from sim.deployment import Limits
from sim.errors import UsageError
from sim.precision import Precision
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.workload.content import BlockHashes, Content

BLOCK = 512  # tokens of a block that an id stands for, unless told: Mooncake's
SESSION, IDS = "session", "prefix_ids"


def read_request_log(
    path: Path, gpu: GpuSpec, model: ModelSpec, precision: Precision, limits: Limits, tp: int = 1, block_tokens: int = BLOCK
) -> ServedRun:
    """Read a per-request log (calibrate.served.request_log) with its optional columns `session` and `prefix_ids`.

    A session's later requests repeat all that was said before, and are sent when the last answer came back and the pause is over that its
    client really made. `prefix_ids` are ids of consecutive blocks of `block_tokens` of the prompt, separated by spaces: prompts that
    begin with the same ids share that prefix. UsageError naming the line.
    """
    run = read_log(path, gpu, model, precision, limits, tp)
    columns, rows = csv_rows(utf8(path, path.name), path.name)
    experiment, notes = with_prefixes(run.experiments[0], columns, rows, path.name, block_tokens)
    return replace(run, engine=f"per-request log of {limits.engine}", experiments=(experiment,), notes=(*run.notes, *notes))


def with_prefixes(
    experiment: Experiment, columns: Sequence[str], rows: Sequence[tuple[int, Row]], name: str, block_tokens: int
) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with what a log's rows say that its prompts share, and what there is to say of it. `rows` are (line, row) as
    written; the experiment has them in order of arrival, equal ones as they were written.
    """
    if SESSION in columns and IDS in columns:
        raise UsageError(f"{name}: line 1: {SESSION} and {IDS} both say what prompts share: give one")
    order = np.argsort([float(row["arrival_s"] or "nan") for _, row in rows], kind="stable")
    ordered = [rows[i] for i in order]
    if SESSION in columns:
        session = _sessions(experiment, [(n, row[SESSION]) for n, row in ordered], name)
        return replace(experiment, session=session, kind="sessions"), ()
    if IDS in columns:
        return replace(experiment, content=tuple(_blocks(name, n, row, block_tokens) for n, row in ordered)), ()
    cached = [row.get("cached_tokens") or "0" for _, row in ordered]
    if "cached_tokens" in columns and any(text not in ("0", "0.0") for text in cached):
        return experiment, (f"tokens were cached, and neither {SESSION} nor {IDS} says what prompts share: simulated as if nothing",)
    return experiment, ()


def rest_of(experiment: Experiment, predicted: Prediction, learnt: int) -> tuple[Experiment, Prediction]:
    """Both without the first `learnt` requests: replayed, so that the server and its cache are as they were, and not scored."""
    draws = {name: values[:, learnt:] if values.ndim == 2 else values for name, values in predicted.draws.items()}
    times = {name: getattr(predicted, name)[learnt:] for name in ("ttft_s", "tpot_s", "e2el_s", "cached_tokens")}
    return taken(experiment, slice(learnt, None), "rest"), Prediction(**times, draws=draws)


def _sessions(experiment: Experiment, told: Sequence[tuple[int, str | None]], name: str) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    session = np.array([numbers.setdefault(text, len(numbers)) if text else -1 for _, text in told], dtype=np.int64)
    back: dict[int, float] = {}
    for i, (line, text) in enumerate(told):
        if text is None or text == "":
            continue
        s = int(session[i])
        if not np.isfinite(experiment.e2el_s[i]):
            raise UsageError(f"{name}: line {line}: session {text[:40]!r} gave up: what came after an unknown answer cannot be replayed")
        if experiment.arrival_s[i] < back.get(s, -np.inf):
            raise UsageError(f"{name}: line {line}: session {text[:40]!r} sends this before its last answer came back")
        back[s] = float(experiment.arrival_s[i] + experiment.e2el_s[i])
    return session


def _blocks(name: str, line: int, row: Row, block_tokens: int) -> Content | None:
    ids = (row.get(IDS) or "").split()
    prompt = int(float(row["prompt_tokens"] or 0))
    if len(ids) > -(-prompt // block_tokens):
        raise UsageError(f"{name}: line {line}: {len(ids)} {IDS} of {block_tokens} tokens are more than a prompt of {prompt} has")
    return BlockHashes(tuple(ids), block_tokens) if ids else None
