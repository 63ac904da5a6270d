"""Compile each pm.Model once, whatever its data: a model of the same graph gets what was compiled for the first, with its own data."""

from collections.abc import Callable
from typing import Any


class CompiledOnce:
    """In place of a function from a graph of a model to what nutpie has compiled of it."""

    def __init__(self, compile_graph: Callable[[Any], Any]) -> None:
        self._compile = compile_graph
        self._known: list[tuple[Any, Any]] = []

    def __get__(self, graph: Any, owner: Any = None) -> Callable[[], Any]:
        return lambda: self(graph)

    def __call__(self, graph: Any) -> Any:
        model = graph.graph
        for other, compiled in self._known:
            if same(model, other):
                return compiled.with_data(**{data.name: data.get_value() for data in model.data_vars})
        self._known.append((model, self._compile(graph)))
        return self._known[-1][1]


def same(one: Any, other: Any) -> bool:
    """Whether two pm.Models are the same functions of their unknowns and their pm.Data: in log density, and in all that they show."""
    from pytensor.graph.basic import equal_computations

    inputs = [[*model.value_vars, *model.data_vars] for model in (one, other)]
    names = [[variable.name for variable in each] for each in inputs]
    if names[0] != names[1] or {k: list(v) for k, v in one.coords.items()} != {k: list(v) for k, v in other.coords.items()}:
        return False
    outputs = [[model.logp(), *model.replace_rvs_by_values(model.unobserved_RVs)] for model in (one, other)]
    return len(outputs[0]) == len(outputs[1]) and bool(equal_computations(outputs[0], outputs[1], *inputs))
