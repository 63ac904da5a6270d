"""`python -m studies.kernel_checks.targets 86 89 121`: every kernel compiled for cards that are not here, and what the compiler said.

Nothing is launched: the wrappers run on small tensors of the CPU, and each launch becomes a compilation. A card before 9.0 gets neither
TMA nor programmatic dependent launches. Needs Triton with its assembler, no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import click


class Compiler:
    """Stands for the driver of a card of compute capability `capability` (86 for 8.6)."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return int(self.target.arch)  # what was compiled is kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(capability: int) -> Iterator[dict[str, str]]:
    """While it is open every launch compiles for the capability; yields "ok" or the first line of the compiler's words, by kernel."""
    import torch
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found: dict[str, str] = {}
    plain = JITFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        try:
            plain(kernel, *args, grid=grid, warmup=True, **options)
        except Exception as failure:  # whatever the compiler or the assembler raises
            found[kernel.__name__] = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        else:
            found.setdefault(kernel.__name__, "ok")

    from kernels.launch import converts_e4m3, has_dependent_launch

    card: dict[str, Any] = {"is_available": lambda: True, "get_device_capability": lambda *_: divmod(capability, 10)}
    before = driver._active
    driver.set_active(Compiler(capability))
    asked = (has_dependent_launch, converts_e4m3)
    for each in asked:
        each.cache_clear()
    try:
        with mock.patch.object(JITFunction, "run", run), mock.patch.multiple(torch.cuda, **card):
            yield found
    finally:
        driver._active = before
        for each in asked:
            each.cache_clear()


def launch_all() -> None:
    """Call every kernel once, at the head shape of Qwen2.5-7B."""
    import torch

    from kernels import gdn_decode, host_gather, page_summaries
    from kernels.model_shape import Shape
    from kernels.model_step import ModelStep
    from kernels.sparse_decode import Scratch, Settings, SparseLayer

    shape = Shape(layers=1, hidden=3584, heads_q=28, heads_kv=4, head_dim=128, ffn=512, vocab=512, qkv_bias=True)
    for batch, modes in ((1, ("dense", "sparse")), (4, ("dense", "sparse")), (1, ("tiered",))):
        step = ModelStep(shape, batch, 2048, modes=modes, device="cpu")
        for mode in modes:
            step.launch(mode)
    step = ModelStep(shape, 1, 2048, modes=("sparse",), device="cpu")
    cache, lens = step.cache[0], step.lens
    made = page_summaries.allocate(cache[0], "minmax_fp8")
    page_summaries.build(made, cache[0])
    settings = Settings(k=8)
    layer = SparseLayer(settings, *cache, Scratch.allocate(settings, 1, step.capacity, 28, 4, 128, "cpu"))
    layer.attend(step.q, step.table, lens, step.attended, 128**-0.5)
    host_gather.stage(*(x.contiguous() for x in cache), -1 - step.table, step.selected, *(x.contiguous() for x in cache), 3)
    qkv, state = torch.randn(2, (2 * 16 + 48) * 128).bfloat16(), torch.randn(2, 48, 128, 128)
    gdn_decode.gdn_decode(qkv, -torch.rand(2, 48), torch.rand(2, 48), state, key_heads=16)


@click.command()
@click.argument("capabilities", type=click.IntRange(80, 130), nargs=-1, required=True)
def main(capabilities: tuple[int, ...]) -> None:
    """Print what came of each kernel; exits 1 where one does not compile."""
    os.environ.pop("TRITON_INTERPRET", None)
    bad = 0
    for capability in capabilities:
        with compiling(capability) as found:
            launch_all()
        bad += sum(said != "ok" for said in found.values())
        click.echo(f"sm_{capability}: {sum(said == 'ok' for said in found.values())} of {len(found)} kernels compile")
        for name, said in sorted(found.items()):
            if said != "ok":
                click.echo(f"  {name}: {said}")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
