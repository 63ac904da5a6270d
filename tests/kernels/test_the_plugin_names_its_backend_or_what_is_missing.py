import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kernels import vllm_plugin


def test_without_vllm_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"pip install 'llm-simctl\[serve\]'"):
        vllm_plugin.register()


def test_the_entry_point_is_the_plugin() -> None:
    tomllib = importlib.import_module("tomllib")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["vllm.general_plugins"].items()
    assert EntryPoint(name, value, "vllm.general_plugins").load() is vllm_plugin.register
    assert "serve" in project["optional-dependencies"]


@pytest.mark.vllm
def test_vllm_knows_the_backend_after_it() -> None:
    registry = pytest.importorskip("vllm.v1.attention.backends.registry")
    vllm_plugin.register()
    vllm_plugin.register()
    assert registry.AttentionBackendEnum.CUSTOM.get_path() == vllm_plugin.BACKEND
