"""The CPU engine is installed without the packages that would pull in CUDA, video and sound."""

from hw.cpu_engine import needed


def test_skipped_and_extra_requirements_are_left_out() -> None:
    listed = [
        "torch==2.13.0",
        "torchvision; python_version > '3'",
        "msgspec",
        "numba==0.65.0",
        "ray; extra == 'ray'",
        "fastapi[standard]<0.137",
    ]
    assert needed(listed) == ["msgspec", "fastapi[standard]<0.137"]
