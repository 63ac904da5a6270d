"""A numpy function with its gradient as an operation of PyTensor's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend

Array = NDArray[np.float64]


def function_with_gradient(function: Callable[[Array], tuple[float, Array]]) -> Any:
    """Operation x -> value, of a function of a vector that returns (value, gradient [x])."""
    pt = backend.tensor()
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op

    class Both(Op):
        """Value and gradient at once: a sampler asks for both."""

        def make_node(self, *inputs: Any) -> Any:
            return Apply(self, [pt.as_tensor(x) for x in inputs], [pt.dscalar(), pt.dvector()])

        def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
            value, gradient = function(inputs[0])
            outputs[0][0], outputs[1][0] = np.asarray(value), gradient

    def pulled_back(self: Any, inputs: Any, outputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * outputs[1]]

    setattr(Both, "pullback" if hasattr(Op, "pullback") else "L_op", pulled_back)  # L_op before PyTensor 3

    def called(x: Any) -> Any:
        both: Any = Both()(x)
        return both[0]

    return called
