"""The interpreter of the tests, which looks for built-ins by name, replaces what Triton's own replaces that goes through the language."""

import pytest
import torch
import triton.language as tl

if torch.cuda.is_available():
    pytest.skip("kernels are compiled here, not interpreted", allow_module_level=True)

from triton.runtime import interpreter


@pytest.mark.parametrize("package", [tl, tl.math, tl.tensor, tl.core.tensor_descriptor_base], ids=lambda package: package.__name__)
def test_both_replace_the_same_and_put_it_back(package) -> None:
    quick = interpreter._patch_builtin
    before, replaced = dict(vars(package)), []
    for patch in (quick, quick.plain):
        scope = interpreter._LangPatchScope()
        patch(package, interpreter.interpreter_builder, scope)
        replaced.append({name for _, name, _ in scope._changes})
        scope.restore()
    assert replaced[0] == replaced[1]
    assert len(replaced[0]) > 1
    assert set(vars(package)) >= set(before)
    assert all(vars(package)[name] is value for name, value in before.items() if not name.startswith("__"))
