"""No command, a mistyped one, or a name that is not there: the answer says what there is."""

import pytest

from simctl.cli import COMMANDS
from tests.cli import run

A10 = ("--gpu", "A10", "--model", "Llama-3.2-1B", "--num-prompts", "1")


def test_no_command_prints_the_help_as_it_is_laid_out():
    said = run()
    assert (said.code, said.stdout) == (2, "")
    assert said.stderr.startswith("Usage: simctl [OPTIONS] COMMAND [ARGS]...\n")
    for name in COMMANDS:
        assert f"\n  {name} " in said.stderr
    assert max(map(len, said.stderr.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["waht-if", "--ctx", "1M"], "no command 'waht-if'; did you mean 'what-if'?"),
        (["zzz"], "no command 'zzz'; see simctl --help"),
        (
            ["run", "batch_cap"],
            "batch_cap: no such scenario file; did you mean 'batch_cap_on_an_a10'?; those of simctl: ",
        ),
        (["simulate", "--gpu", "H100", "--qps", "4"], "No such option '--qps': here it is --request-rate"),
        (["simulate", "--gpu", "H100", "--isl", "4"], "No such option '--isl': here it is --random-input-len"),
        (["plan", "--gpus", "4"], "No such option '--gpus': here it is --tp"),
        (["what-if", "--ctx", "8K", "--gpu", "4xH100"], "'4xH100' is 4 GPUs: give --gpu H100 with --tp 4"),
        (["what-if", "--ctx", "8K", "--gpu", "rtx4090 x2"], "is 2 GPUs: give --gpu RTX-4090 with --tp 2"),
        (["what-if", "--ctx", "8K", "--gpu", "H100", "--dtype", "awq"], "awq is a format of int4 weights: give int4"),
        (["simulate", *A10, "--router", "rond-robin"], "unknown router 'rond-robin'; did you mean 'round-robin'? known: "),
        (["simulate", *A10, "--router-option", "dispach_s=1"], "no option 'dispach_s'; did you mean 'dispatch_s'?; it has "),
        (["simulate", *A10, "--engine", "vlm"], "unknown engine 'vlm'; did you mean 'vllm'? known: "),
        (["measure", "--suite", "hots", "-o", "hots"], "unknown suite 'hots'; did you mean 'host'? known: "),
        (["validate", "x.nc"], "Got unexpected extra argument (x.nc); see simctl validate --help"),
        (["validate", "--run", "zzz"], "unknown run 'zzz'; known: h100/served_"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(arguments, says):
    said = run(*arguments)
    assert (said.code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert says in said.stderr
