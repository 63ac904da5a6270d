"""`python docs/coverage.py`: the site's page of what is read, priced and measured, from the tables that the code reads by."""

from __future__ import annotations

from sim.specs.architectures import TEXT_PARTS, supported
from sim.specs.coverage import BLOCKS, PRECISIONS, engine_architectures, unread_architectures
from sim.specs.gguf import GGUF
from sim.specs.gpus import list_gpus
from sim.specs.quantisation import METHODS
from sim.workload.formats import FORMATS

INTRO = """# Coverage: models, precisions, GPUs and files

Made from the tables that the code reads by. `simctl models --check CONFIG` says the same of one model.

* **measured**: engine runs that contain it stand behind its rates
* **priced**: its bytes, flops and launches are in the formula; nobody ran it
* **refused**: an error names the field or block
"""


def page() -> str:
    """The page as Markdown."""
    blocks = [f"| {part.name} | {part.status} | {part.remark} |" for part in BLOCKS.values()]
    plain = [f"| {name} | {status} | {remark} |" for name, (status, remark) in PRECISIONS.items() if name not in GGUF]
    version, architectures = engine_architectures()
    unread = unread_architectures()
    share = f"{len(architectures) - len(unread)} of the {len(architectures)} text architectures of vLLM {version}"
    files = [f"| `{name}` | {says} |" for name, (_, _, says) in FORMATS.items()]
    return "\n".join(
        [
            INTRO,
            "## Blocks of a model\n\n| block | status | how |\n|---|---|---|",
            *blocks,
            "\n## Model types\n",
            f"`model_type` values: {', '.join(supported())}.\n",
            f"Multimodal checkpoints are read by their {', '.join(f'`{part}`' for part in TEXT_PARTS)}. Any other type is refused.\n",
            f"These read {share}; the others are {', '.join(unread)}.",
            "\n## Weight precisions\n\n| dtype | status | remark |\n|---|---|---|",
            *plain,
            f"\nGGUF types under llama.cpp, priced: {', '.join(GGUF)}.\n",
            f"`quantization_config` methods: {', '.join(METHODS)}. Any other is refused.",
            "\n## GPUs\n",
            f"H100 and H200 are measured; all others are priced by their datasheets or a chip of their kind: {', '.join(list_gpus())}.",
            "\n## Workload files\n\n| format | what |\n|---|---|",
            *files,
            "",
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
