"""A shell completes commands, options, and the names of the catalogues, in either case; elsewhere, files."""

import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from sim.specs.gpus import list_gpus
from sim.specs.models import list_models
from simctl.cli import group


def completed(*words: str) -> list[tuple[str, str]]:
    shell = BashComplete(group, {}, "simctl", "_SIMCTL_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    "words",
    [
        ("what-if", "--gpu"),
        ("watch", "--gpu"),
        ("simulate", "--gpu"),
        ("validate", "--gpu"),
        ("calibrate", "--hw"),
        ("learn", "--gpu"),
        ("design", "--hw"),
        ("gpus",),
    ],
)
def test_gpus(words):
    assert completed(*words, "") == [("plain", name) for name in list_gpus()]
    assert ("plain", "H100") in completed(*words, "h1")
    assert all(name.startswith("H") for _, name in completed(*words, "h"))


@pytest.mark.parametrize(
    "words",
    [("what-if", "--model"), ("simulate", "--model"), ("validate", "--model"), ("models",)],
)
def test_models(words):
    assert completed(*words, "") == [("plain", name) for name in list_models()]
    assert ("plain", "Llama-3.1-8B") in completed(*words, "llama-3.1")


def test_what_no_catalogue_has_is_a_file():
    assert completed("what-if", "--gpu", "./my") == [("file", "./my")]


def test_names_are_single_words():
    """The shells' scripts split at blanks."""
    assert not [name for name in (*list_gpus(), *list_models()) if len(name.split()) != 1]


def test_commands_and_options():
    assert ("plain", "what-if") in completed("wh")
    assert ("plain", "--request-rate") in completed("simulate", "--req")


def test_the_program_answers_the_shell():
    environment = os.environ | {"_SIMCTL_COMPLETE": "bash_complete", "COMP_WORDS": "simctl what-if --gpu H2", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-m", "simctl"], env=environment, capture_output=True, text=True, check=True)
    assert "plain,H200" in done.stdout.splitlines()
