"""One measuring job: a suite on a device, for a model where the suite has one. Pre-flight, floors, suite, files."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from hw import preflight, provenance
from hw.estimate import expected
from hw.journal import Journal
from hw.signals import terminate_as_interrupt

# suite -> module with `run(job, out, journal, facts) -> paths`; imported only when the suite runs
SUITES = {
    "floor": "hw.suites.floor_job",
    "kernels": "hw.suites.kernel_table_job",
    "decode": "hw.suites.decode_job",
    "engine-grid": "hw.suites.engine_grid_job",
    "weight-axis": "hw.suites.engine_grid_job",
    "profile": "hw.suites.profile_job",
    "duty": "hw.suites.duty_job",
    "products": "hw.suites.products_job",
    "served": "hw.suites.served_job",
}
SERVED_BY_URL = "hw.suites.served_url_job"
NEEDS_CUDA = frozenset({"kernels", "decode"})
MODEL_FREE = frozenset({"floor", "kernels"})
OF_MODELS = frozenset({"products"})  # one job for all models named, or for all known
SPREADS = frozenset({"engine-grid", "weight-axis"})  # over several GPUs
ENGINE_IN_PROCESS = SPREADS | {"profile", "duty"}


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. `budget_s` counts measuring, not the engine's start. `quantization` is the engine's name for it ("fp8")."""

    suite: str
    device: str
    model: str | None = None
    quantization: str | None = None
    budget_s: float | None = None
    seed: int = 0
    expect_gpu: str | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    rates: tuple[float, ...] = (1.0, 4.0, 10.0, 20.0)
    engine: str = "vllm"  # of the served suite: vllm or llamacpp
    url: str | None = None  # of a running server, instead of one of our own; `model` is then its name for the model
    vocab_size: int = 32000  # prompts sent to `url` hold token ids below this
    experiments: tuple[str, ...] = ()  # names or patterns of the served suite; none means all
    iterations: bool = False  # of the served suite: write down what every iteration carried
    fast_start: bool = False
    tensor_parallel: int = 1
    cells: str | None = None  # a file of cells, instead of the engine-grid suite's own
    label: str | None = None  # ends the file's name: a run of part of a suite is not taken for the whole
    models: tuple[str, ...] = ()  # of a suite of OF_MODELS, in place of `model`; none means all that are known
    products: str | None = None  # a list of products, instead of `models`
    products_sha256: str = ""  # of that list: a run is resumed with no other

    @property
    def stem(self) -> str:
        """File name without suffix: suite, models, engine where not our own vLLM, weight dtype, GPUs a model is spread over, label."""
        engine = "url" if self.url else None if self.engine == "vllm" else self.engine
        parts = [
            self.suite,
            self.model,
            *self.models,
            Path(self.products).stem.removeprefix("products_") if self.products else None,
            engine,
            self.quantization,
            f"tp{self.tensor_parallel}" if self.tensor_parallel > 1 else None,
            self.label,
        ]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", p.lower()) for p in parts if p)


def run(job: Job, out: Path, *, resume: bool = False) -> list[Path]:
    """Do one job and write its files into `out`. Returns their paths.

    Interrupted (Ctrl-C or a termination signal), out of budget or failed half-way, it still writes what it has, marked
    `finished = 0`, and keeps the journal so that `resume` can go on. Raises UsageError or SimctlError from the gates.
    """
    out.mkdir(parents=True, exist_ok=True)
    if job.url:
        facts = provenance.of_client() | {
            "gpu_name": job.expect_gpu or "unknown",
            "preflight": "a server by URL: its machine was not looked at",
        }
    else:
        gates = preflight.check(job.device, job.expect_gpu)
        facts = provenance.collect(job.device) | gates
    time = expected(job.suite, job.device, job.budget_s, starts=not job.url)
    where = facts["gpu_name"] if facts["gpu_name"] != "none" else facts.get("cpu", "this CPU")
    print(f"{job.stem}: {where}, {time}, budget {job.budget_s or 'none'}", file=sys.stderr, flush=True)
    journal_path = out / f"{job.stem}.journal.jsonl"
    header = {k: v for k, v in asdict(job).items() if k != "budget_s"} | {"gpu": facts["gpu_name"]}
    with terminate_as_interrupt():
        journal = Journal(journal_path, header, resume=resume)
        try:
            paths: list[Path] = importlib.import_module(SERVED_BY_URL if job.url else SUITES[job.suite]).run(job, out, journal, facts)
        except KeyboardInterrupt:
            if journal.records:
                print(f"{job.stem}: what was measured is kept in {out}; --resume goes on", file=sys.stderr, flush=True)
            raise
        return paths
