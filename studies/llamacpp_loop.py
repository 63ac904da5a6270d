"""A llama.cpp server of this CPU measured, learnt, and a load it has not seen predicted: what `make loop-llamacpp` runs.

    python -m studies.llamacpp_loop PYTHON OUT    # PYTHON has xllamacpp and gguf

No datasheet says what a core gives llama.cpp: two numbers of one request alone, bytes of weights over a token's time and operations over a
prompt token's, stand in its place. Three open loops are learnt from; one at another rate and seed is predicted and then scored.
Minutes; a busy machine makes each step as long as its share of the core, and no one rate holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from sim.errors import SimctlError
from sim.files import write_text
from sim.specs.models import get_model
from studies.program import program

SERVER = Path(__file__).with_name("llamacpp_server.py")
SHAPE = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 8,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
SLOTS, SLOT_TOKENS, BATCH = 4, 1024, 512
KNOWN_RATES, NEW_RATE, NEW_SEED = ("0.3", "0.8", "1.2"), "0.5", "1"
PROBE_PROMPT, PROBE_OUTPUT, PROBES = 256, 48, 5
MEMORY_BYTES = 8e9  # more than the slots need


@program("llamacpp_loop", "PYTHON OUT")
def main(argv: Sequence[str]) -> int:
    python, out = argv[0], Path(argv[1])
    out.mkdir(parents=True, exist_ok=True)
    shape, core = out / "shape.json", out / "core.yaml"
    write_text(shape, json.dumps(SHAPE) + "\n")
    served = ("--engine", "llamacpp", "--gpu", str(core), "--model", str(shape), "--dtype", "fp16")
    limits = ("--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", str(BATCH))
    with _server(python, out, shape) as url:
        write_text(core, datasheet(shape, probes(url)))
        known = _measured(url, out, "known", "0", KNOWN_RATES)
        new = _measured(url, out, "new", NEW_SEED, (NEW_RATE,))  # at once, as a core's share changes; nothing reads it before it is scored
    _simctl("learn", str(known), *served, *limits, "--out", str(out / "learnt.nc"))
    _simctl("validate", "--run", str(new), *served, *limits, "--posterior", str(out / "learnt.nc"))
    return 0


@contextmanager
def _server(python: str, out: Path, shape: Path) -> Iterator[str]:
    """The address of a server of its own, ended with the block. SimctlError where it does not start."""
    command = [python, str(SERVER), str(out / "model.gguf"), str(shape), str(SLOTS), str(SLOT_TOKENS)]
    with (out / "server.log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url.startswith("http://127.0.0.1:"):
                raise SimctlError(f"the server did not start: {out / 'server.log'} says why")
            yield url
        finally:
            process.kill()  # it has nothing to save, and answers to no gentler signal while a request is computed


def probes(url: str) -> tuple[float, float]:
    """(seconds of a prompt token, seconds of a token of an answer) of one request alone, medians as the server times them."""
    prompts, answers = [], []
    for i in range(PROBES):
        prompt = [300 + (7 * i + j) % 3000 for j in range(PROBE_PROMPT)]
        asked = {"prompt": prompt, "n_predict": PROBE_OUTPUT, "ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(f"{url}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            timings = json.load(answer)["timings"]
        prompts.append(timings["prompt_per_token_ms"] / 1e3)
        answers.append(timings["predicted_per_token_ms"] / 1e3)
    return median(prompts), median(answers)


def datasheet(shape: Path, alone: tuple[float, float]) -> str:
    """A GPU file for the core: what one request alone reaches of memory and arithmetic."""
    model, (prompt_s, token_s) = get_model(str(shape)), alone
    read = model.params - model.embedding_params  # a token looks one row of the input table up
    bandwidth, flops = 2.0 * read / token_s, 2.0 * (read - model.lm_head_params) / prompt_s
    lines = [f"memory_bytes: {MEMORY_BYTES!r}", f"memory_bandwidth: {bandwidth!r}", f"host_link_bandwidth: {bandwidth!r}"]
    lines += ["flops:", *(f"  {dtype}: {flops!r}" for dtype in ("fp32", "fp16", "bf16"))]
    return "gpus:\n- name: one-cpu-core\n" + "".join(
        f"  {line}\n" for line in [*lines, "source: one request alone of its llama.cpp server"]
    )


def _measured(url: str, out: Path, label: str, seed: str, rates: Sequence[str]) -> Path:
    """The file of open loops at these rates."""
    loops = ",".join(f"open {rate}/s" for rate in rates)
    asked = ("--url", url, "--model", "tiny", "--vocab-size", str(SHAPE["vocab_size"]), "--rates", ",".join(rates), "--experiments", loops)
    _simctl("measure", "--hw", "cpu", "--suite", "served", *asked, "--seed", seed, "--label", label, "-o", str(out))
    return out / f"served_tiny_url_{label}.nc"


def _simctl(*arguments: str) -> None:
    print("$ simctl", *arguments, flush=True)
    if (code := subprocess.run([sys.executable, "-m", "simctl", *arguments], check=False).returncode) != 0:
        raise SimctlError(f"simctl {arguments[0]} ended with {code}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
