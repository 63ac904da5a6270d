"""`python -m kernels.gdn_drift`: what a bf16 state of the gated delta rule costs, step after step, against a float64 recurrence.

The state is rounded once a step. Where gates forget slowly the roundings add up; float32 is the default for that reason. On a GPU the
kernel takes the steps; elsewhere the float64 reference does, its state rounded to the nearest after each, which is the kernel's rounding on
a GPU (Triton's interpreter truncates bf16 instead, which drifts several times faster and says nothing of a GPU).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels import reference
from kernels.gdn_decode import gdn_decode

HEADS, K, V = 4, 64, 64


def errors(rate: float, steps: Sequence[int], device: str | torch.device, *, kernel: bool, seed: int = 0) -> dict[int, dict[str, float]]:
    """Relative errors after each of `steps` steps: of the state and output, with a float32 and with a bf16 state.

    Log decays are uniform on [-2 rate, 0], so a state forgets over about 1 / rate steps; bf16 q, k, v; one sequence of 4 heads of 64 x 64.
    `kernel`: whether the kernel takes the steps, or the reference with its state rounded.
    """
    gen = torch.Generator().manual_seed(seed)
    exact = torch.randn(1, HEADS, V, K, generator=gen).to(torch.bfloat16).double().to(device)
    states = {"float32": exact.float(), "bf16": exact.to(torch.bfloat16)}
    found = {}
    for step in range(1, max(steps) + 1):
        qkv = torch.randn(1, HEADS * (2 * K + V), generator=gen).to(torch.bfloat16).to(device)
        decay, beta = (torch.rand(1, HEADS, generator=gen).to(device) for _ in range(2))
        decay = -2 * rate * decay
        parts = [x.reshape(1, HEADS, -1) for x in qkv.split([HEADS * K, HEADS * K, HEADS * V], dim=1)]
        out, exact = reference.gdn_decode(*parts, decay, beta, exact, K**-0.5, True)
        row = {}
        for name, state in states.items():
            if kernel:
                mine = gdn_decode(qkv, decay, beta, state, key_heads=HEADS, allow_bf16_state=True)
            else:
                mine, stepped = reference.gdn_decode(*parts, decay, beta, state, K**-0.5, True)
                state.copy_(stepped)
            row[f"state {name}"] = reference.relative_error(state, exact)
            row[f"output {name}"] = reference.relative_error(mine, out)
        if step in steps:
            found[step] = row
    return found


def main() -> None:
    on_gpu = torch.cuda.is_available()
    names = ("state float32", "state bf16", "output float32", "output bf16")
    print("| forgets over | steps | " + " | ".join(names) + " |\n|" + "---|" * 6)
    for rate in (0.1, 0.01, 0.001):
        for step, row in errors(rate, (1, 16, 64, 256), "cuda" if on_gpu else "cpu", kernel=on_gpu).items():
            print(f"| {1 / rate:.0f} steps | {step} | " + " | ".join(f"{row[n]:.1e}" for n in names) + " |", flush=True)


if __name__ == "__main__":
    main()
