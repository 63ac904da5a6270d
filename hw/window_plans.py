"""What a window of GPU time is for: its steps, most informative first. A step is one command of this project and its seconds."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Step:
    """`command` follows the interpreter (or names a program, with `program`); `{out}` is the step's folder, `{budget}` its seconds of
    measuring: what it gets less `start_s`, which engines take to start. Not begun with less than `least_s` left; `needs` are importable."""

    name: str
    command: tuple[str, ...]
    most_s: float
    least_s: float
    start_s: float = 10.0
    program: str = ""
    needs: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One window: the device it is for (None: a CPU), how many of them, and the question its data answer."""

    about: str
    gpu: str | None
    gpus: int
    steps: tuple[Step, ...]


def _measure(suite: str, *more: str, hw: str = "cuda") -> tuple[str, ...]:
    return ("-m", "hw", "--hw", hw, "--suite", suite, "-o", "{out}", "--budget", "{budget}", "--resume", *more)


def _grid(gpu: str, model: str, *more: str, most_s: float = 240.0, env: tuple[tuple[str, str], ...] = ()) -> Step:
    command = _measure("engine-grid", "--model", model, "--expect-gpu", gpu, *more)
    return Step(f"grid-{model.replace(':', '-')}", command, most_s, 140.0, 110.0, needs=("vllm",), env=env)


def _profile(gpu: str, model: str) -> Step:
    """Prefill and mixed cells come first: most of what a budget may cut are decodes, whose graphs are all alike."""
    return Step(f"profile-{model}", _measure("profile", "--model", model, "--expect-gpu", gpu), 200.0, 150.0, 110.0, needs=("vllm",))


def _duty(gpu: str, model: str) -> Step:
    return Step(f"duty-{model}", _measure("duty", "--model", model, "--expect-gpu", gpu), 180.0, 150.0, 110.0, needs=("vllm",))


def _served(gpu: str, model: str, name: str, *more: str, most_s: float, least_s: float) -> Step:
    """A served suite starts up to two servers, of which only the measuring counts against its budget."""
    command = _measure("served", "--model", model, "--expect-gpu", gpu, "--rates", "2,8,16,24", *more)
    return Step(name, command, most_s, least_s, 200.0 if not more else 100.0, needs=("vllm",))


def _repeats(gpu: str, model: str) -> Step:
    """On one server the lowest open loop and the ladder, which a host is learnt from, and what is sent several times in seconds."""
    only = ("--experiments", "open 2/s,sessions*,closed*,ladder*", "--label", "repeats")
    return _served(gpu, model, f"repeats-{model}", *only, most_s=240.0, least_s=185.0)


def _checked(tool: str) -> Step:
    """Every kernel once on small shapes, under one of the memory checker's tools."""
    command = ("--tool", tool, "--error-exitcode", "9", "{python}", "-m", "kernels.smoke")
    uncached = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)  # an access past a tensor is then one past an allocation
    return Step(tool, command, 110.0, 50.0, program="compute-sanitizer", needs=("triton",), env=uncached)


# On a GPU the tests mostly wait for the compiler: twelve at a time where pytest can.
_AT_ONCE = ("-p", "xdist.plugin", "-n", "12") if importlib.util.find_spec("xdist") else ()
# A machine's own plugins may warn, and a warning is an error here (pytest-benchmark warns beside xdist): none comes unasked.
_NO_PLUGINS = (("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"),)
_TESTS = Step(
    "tests", ("-m", "pytest", "-v", "-p", "no:cacheprovider", *_AT_ONCE, "tests/kernels"), 150.0, 60.0, needs=("pytest",), env=_NO_PLUGINS
)
# How a paged cache is walked: the order of its pages first, then what is queued.
_ORDERS = ("fixed", "queue 1/8 by 8", "sorted fixed", "sorted queue 1/8 by 8", "sorted queue 1/16 by 2", "sorted by head fixed",
           "in turn fixed", "ascending fixed")  # fmt: skip
_ORDER = Step(
    "orders", ("-m", "kernels.tune_dense", "-o", "{out}", "--budget", "{budget}", "--only", *_ORDERS), 90.0, 50.0, needs=("triton",)
)
_SHAPES = Step("shapes", ("-m", "kernels.tune_shapes", "-o", "{out}"), 75.0, 50.0, needs=("triton",))
_KERNELS = (
    Step("kernels", ("-m", "kernels.bench", "-o", "{out}", "--host-step", "--budget", "{budget}"), 300.0, 60.0, 25.0, needs=("triton",)),
    _ORDER,
    _SHAPES,
    _TESTS,
    _checked("memcheck"),
    _checked("racecheck"),
    Step("drift", ("-m", "kernels.gdn_drift"), 60.0, 20.0, needs=("triton",)),
)
# Sizes of the captured graphs, and between: products by rows first, then the same rows as whole iterations.
_MEASURED = "qwen2.5-7b,llama3.1-8b,qwen3-14b,qwen3-coder-30b-a3b"
_PRODUCTS = Step("products", _measure("products", "--model", _MEASURED, "--expect-gpu", "h100"), 85.0, 60.0, 25.0)
# Of the catalogue's other models, whole, as `hw.products_list` lists them; and those of an 8B, which cards are compared by.
_CATALOGUE = str(files("scenarios") / "data" / "measured" / "h100" / "catalogue.products.csv")
_LISTED = {
    gpu: Step("products", _measure("products", "--products", _CATALOGUE, "--expect-gpu", gpu), 240.0, 130.0, 25.0)
    for gpu in ("h100", "h200")
}
_ROWS = ("--cells", str(files("scenarios") / "data" / "measured" / "h100" / "rows.cells.json"), "--label", "rows")
_SMALL = ("--model", "tiny-25m", "--max-num-seqs", "16", "--max-num-batched-tokens", "512")
# The all-reduce floors committed here were taken without NVLink multicast; a grid to put beside them must be too.
_NO_MULTICAST = (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NVSHMEM_DISABLE_NVLS", "1"))

PLANS = {
    "h200-kernels": Plan("every kernel on an H200, contexts to 2M; tests, memory and race checks on the GPU", "h200", 1, _KERNELS),
    "h100-kernels": Plan("the same on an H100", "h100", 1, _KERNELS),
    "h100-pages": Plan(
        "orders of the pages of a dense cache; the gated delta rule beside an engine's; tests on the GPU", "h100", 1,
        (
            _ORDER,
            Step("gdn", ("-m", "kernels.bench", "-o", "{out}", "--suites", "gdn", "--budget", "{budget}"), 60.0, 45.0, needs=("triton",)),
            _SHAPES,
            _TESTS,
        ),
    ),
    "h100-served": Plan(
        "a second served model: four loads, sessions, ladder, KV-starved burst; then the burst of the first", "h100", 1,
        (
            _served("h100", "llama3.1-8b", "served-llama3.1-8b", most_s=400.0, least_s=260.0),
            _served("h100", "qwen2.5-7b", "burst-qwen2.5-7b", "--experiments", "burst", most_s=170.0, least_s=135.0),
        ),
    ),
    "h100-repeats": Plan(
        "sessions and closed loops sent four times, beside a low load and a ladder, of both served models: what no model could predict",
        "h100", 1,
        (_repeats("h100", "qwen2.5-7b"), _repeats("h100", "llama3.1-8b")),
    ),
    "h200-served": Plan(
        "the served 7B on an H200; then the whole-step grid, of which the H200 has a third", "h200", 1,
        (
            _served("h200", "qwen2.5-7b", "served-qwen2.5-7b", most_s=520.0, least_s=260.0),
            Step("decode", _measure("decode", "--model", "qwen2.5-7b", "--expect-gpu", "h200"), 160.0, 70.0, 20.0, needs=("triton",)),
        ),
    ),
    "h200-grids": Plan(
        "engine grids of three models on one H200, as many visits as there is time for", "h200", 1,
        (_grid("h200", "qwen2.5-7b", most_s=330.0), _grid("h200", "llama3.1-8b", most_s=330.0), _grid("h200", "qwen3-14b", most_s=330.0)),
    ),
    "h100-grids": Plan(
        "engine grids of every bf16 model that the H100's posterior is learnt from, on one host", "h100", 1,
        (
            _grid("h100", "qwen2.5-7b", most_s=260.0),
            _grid("h100", "llama3.1-8b", most_s=275.0),
            _grid("h100", "qwen3-14b", most_s=300.0),
            _grid("h100", "qwen3-coder-30b-a3b", most_s=330.0),
        ),
    ),
    "h100-profile": Plan(
        "kernel profiles of the four models of the grids: which matrix products, how much attention, how long the GPU waits", "h100", 1,
        tuple(_profile("h100", model) for model in ("qwen3-coder-30b-a3b", "qwen3-14b", "qwen2.5-7b", "llama3.1-8b")),
    ),
    "h100-duty": Plan(
        "prefill after quiet, decodes near prefill at several duties, the card's clock beside: what iterations leave the next", "h100", 1,
        tuple(_duty("h100", model) for model in ("llama3.1-8b", "qwen2.5-7b")),
    ),
    "h100-products": Plan(
        "matrix products by rows, and iterations of as many tokens: at which sizes the library's choice of kernel costs time", "h100", 1,
        (_PRODUCTS, *(_grid("h100", m, *_ROWS, most_s=195.0) for m in ("llama3.1-8b", "qwen2.5-7b", "qwen3-14b"))),
    ),
    "h100-catalogue": Plan("matrix products by rows of every catalogue model that fits one H100", "h100", 1, (_LISTED["h100"],)),
    "h200-catalogue": Plan("the same on an H200", "h200", 1, (_LISTED["h200"],)),
    "h100-fp8": Plan(
        "engine grids with fp8 weights", "h100", 1,
        (_grid("h100", "qwen2.5-7b:fp8"), _grid("h100", "llama3.1-8b:fp8")),
    ),
    "h200-tp2": Plan(
        "a model over two GPUs: the grid with its all-reduces, all-reduce alone, a larger model", "h200", 2,
        (
            _grid("h200", "qwen2.5-7b", "--tp", "2", env=_NO_MULTICAST),
            Step("floor", _measure("floor", "--expect-gpu", "h200"), 60.0, 40.0, env=_NO_MULTICAST),
            _grid("h200", "qwen3-14b", "--tp", "2", env=_NO_MULTICAST, most_s=200.0),
        ),
    ),
    "cpu": Plan(
        "the same on a machine without a GPU: to see a window run before one is paid for", None, 0,
        (
            Step("floor", _measure("floor", hw="cpu"), 60.0, 40.0, 5.0),
            Step("grid-tiny-25m", _measure("engine-grid", *_SMALL, hw="cpu"), 150.0, 90.0, 50.0, needs=("vllm",)),
            Step("served-tiny-25m", _measure("served", *_SMALL, "--rates", "0.5,1.5", hw="cpu"), 240.0, 160.0, 120.0, needs=("vllm",)),
        ),
    ),
}  # fmt: skip
