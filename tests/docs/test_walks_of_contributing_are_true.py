"""The walks of CONTRIBUTING.md, walked in a copy of the tree: the test fails as it says, the diffs apply, the test passes. And as many
files as its table says are enough for a router, a metric, a GPU, a mixer and a rate.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- walk (\w+) (\w+)(?:: (\S+))? -->\n```\w*\n(.*?)```", PAGE, re.DOTALL)
METRIC = """
     Figure("request_goodput", None, "Request goodput (req/s):"),
+    Figure("longest_ttft_ms", lambda v: float(np.nanmax(v.latency["ttft"])), "Longest TTFT (ms):"),
"""
GPU = """
-[{
+[{
+ "name": "TOY-48G", "aliases": [], "memory_bytes": 48000000000, "memory_bandwidth": 1.0e+12,
+ "flops": {"fp32": 50e+12, "fp16": 200e+12, "bf16": 200e+12, "int8": 400e+12, "fp8": 400e+12},
+ "host_link_bandwidth": 32e+9, "gpu_link_bandwidth": null, "l2_bytes": 50000000, "price_per_hour": null, "source": "made"
+},
+{
  "name": "H100",
"""
SHAPE = """
-Mixer = Attention | LatentAttention
+@dataclass(frozen=True, slots=True)
+class DecayingAverage(ConstantState):
+    \"\"\"An average of values that decays by head.\"\"\"
+
+    heads: int
+    head_dim: int
+
+    kind: Literal["average"] = field(default="average", init=False)
+
+    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
+        return (Matrix("mixer.in_proj", self.row_elements(), hidden), Matrix("mixer.out_proj", hidden, self.row_elements()))
+
+    def vectors(self, hidden: int) -> int:
+        return self.heads
+
+    def params(self, hidden: int) -> int:
+        return elements(self.matrices(hidden)) + self.vectors(hidden)
+
+    def row_elements(self) -> int:
+        return self.heads * self.head_dim
+
+    def state_elements(self) -> int:
+        return self.row_elements()
+
+    def conv_elements(self) -> int:
+        return 0
+
+    def flops_per_token(self) -> int:
+        return 3 * self.row_elements()
+
+
+Mixer = DecayingAverage | Attention | LatentAttention
"""
WORK = """
     "recurrent": recurrence,
+    "average": recurrence,
"""
USES_MIXER = """
from sim.cost.batch import decode_batch
from sim.cost.work import iteration_work
from sim.deployment.kv_layout import state_bytes
from sim.specs.coverage import parts
from sim.specs.mixers import DecayingAverage
from sim.specs.mlps import DenseMlp
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.precision import Precision
toy = ModelSpec("toy", 512, 1000, (LayerGroup(4, DecayingAverage(8, 64), DenseMlp(2048)),), False, 10**6)
work = iteration_work(toy, decode_batch(toy, 3.0, 1000.0), Precision())
print(toy.state_layers, work.state_bytes == 3 * 4 * 2 * 512 * 4, state_bytes(toy, toy.groups[0].mixer), [part.name for part in parts(toy)])
"""
SIMULATE = ("-m", "simctl", "simulate", "--model", "Llama-3.1-8B", "--num-prompts", "20", "--request-rate", "20", "--draws", "0")


def copy(root: Path, touched: set[str]) -> None:
    """A tree of links to this one, with real files of those that are touched."""
    for folder in {parent for name in touched for parent in Path(name).parents}:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for path in (ROOT / folder).iterdir():
            place = root / folder / path.name
            if path.name == "__pycache__" or place.exists() or any(Path(name).is_relative_to(folder / path.name) for name in touched):
                continue
            place.symlink_to(path)
    for name in touched:
        if (ROOT / name).exists():
            (root / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")


def apply(root: Path, name: str, diff: str) -> None:
    """A diff without line numbers: its kept and removed text stands in the file once."""
    lines = diff.strip("\n").split("\n")
    before = "\n".join(line[1:] for line in lines if line[:1] in " -")
    after = "\n".join(line[1:] for line in lines if line[:1] in " +")
    text = (root / name).read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{name}: not once in it: {before}"
    (root / name).write_text(text.replace(before, after), encoding="utf-8")


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True, check=False)


def walked(root: Path, walk: str) -> set[str]:
    """The walk up to its passing test. Returns the files of the product that it touches."""
    (test, text) = next((name, text) for which, what, name, text in BLOCKS if (which, what) == (walk, "test"))
    diffs = [(name, text) for which, what, name, text in BLOCKS if (which, what) == (walk, "diff")]
    fails = next(text for which, what, _, text in BLOCKS if (which, what) == (walk, "fails"))
    copy(root, {test, *(name for name, _ in diffs)})
    (root / test).write_text(text, encoding="utf-8")
    pytest_of = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", test)
    failed = run(root, *pytest_of)
    assert failed.returncode == 1
    assert fails.strip().removesuffix(", ...") in failed.stdout
    for name, diff in diffs:
        apply(root, name, diff)
    passed = run(root, *pytest_of)
    assert passed.returncode == 0, passed.stdout
    return {name for name, _ in diffs}


def test_your_first_router(tmp_path):
    assert len(walked(tmp_path, "router")) <= 2
    command = next(text for which, what, _, text in BLOCKS if (which, what) == ("router", "command"))
    done = run(tmp_path, "-m", *command.split())
    assert done.returncode == 0, done.stderr
    assert "Successful requests:" in done.stdout


def test_your_first_rate(tmp_path):
    assert len(walked(tmp_path, "rate")) <= 3
    refused = run(tmp_path, "-m", "simctl", "what-if", "--gpu", "H100", "--model", "Llama-3.1-8B", "--ctx", "8K")
    assert refused.returncode == 1
    assert next(text for which, what, _, text in BLOCKS if (which, what) == ("rate", "refuses")).strip() in refused.stderr


@pytest.mark.parametrize(
    ("diffs", "words", "says"),
    [
        ({"sim/results/metrics.py": METRIC}, (*SIMULATE, "--gpu", "H100"), "Longest TTFT (ms):"),
        ({"sim/specs/data/gpus.json": GPU}, (*SIMULATE, "--gpu", "TOY-48G"), "Successful requests:"),
        (
            {"sim/specs/mixers.py": SHAPE, "sim/cost/mixer_work.py": WORK},
            ("-c", USES_MIXER),
            "4 True 2048.0 ['average', 'dense MLP']",
        ),
    ],
    ids=["metric", "GPU", "mixer"],
)
def test_a_part_is_as_many_files_as_the_table_says(tmp_path, diffs, words, says):
    copy(tmp_path, set(diffs))
    for name, diff in diffs.items():
        apply(tmp_path, name, diff)
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
