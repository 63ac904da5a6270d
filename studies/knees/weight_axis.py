"""The published weight-axis study: models of one family at one context on one H100, fp8 weights and fp16 KV.

Model shapes, knees and contrasts are facts with their source; predictions are computed here.
Source: scenarios/data/reference/tr164 (weight_axis_pair_contrasts, derived_model_knees, derived_model_dims_external).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.closed_form.knee import closed_form_knee
from studies.reference_tables import table

FP8_BYTES, FP16_BYTES = 1.0, 2.0
TAU = 0.65


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model for the closed form: layers, KV heads, head size, parameters, and its sliding window."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    params: int
    global_layers: int
    window_tokens: int | None

    @property
    def kv_bytes_per_token(self) -> float:
        """K and V of one token over all layers, fp16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * FP16_BYTES

    def kv_bytes(self, context_tokens: int, sliding: bool = False) -> float:
        """KV bytes of one request; `sliding` reads at most the window in the layers that have one."""
        if not sliding or self.window_tokens is None:
            return context_tokens * self.kv_bytes_per_token
        local = (self.layers - self.global_layers) * min(context_tokens, self.window_tokens)
        return (self.global_layers * context_tokens + local) * self.kv_bytes_per_token / self.layers

    def ratio(self, context_tokens: int) -> float:
        """KV bytes of one request over weight bytes."""
        return self.kv_bytes(context_tokens) / (self.params * FP8_BYTES)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed continuous knee."""

    family: str
    run: str
    shape: Shape
    context_tokens: int
    knee: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two sizes of one family at one context: knees, observed and published predicted ratio large over small."""

    family: str
    run: str
    small: Shape
    large: Shape
    context_tokens: int
    knee_small: float
    knee_large: float
    observed_ratio: float
    published_ratio: float


Predictor = Callable[[Shape, int], float]


def shapes() -> dict[str, Shape]:
    """The nine models of the study by name."""
    return {
        row["model"]: Shape(
            row["model"],
            int(row["layers"]),
            int(row["kv_heads"]),
            int(row["head_dim"]),
            int(row["params"]),
            int(row["global_attention_layers"]),
            int(row["sliding_window_tokens"]) if row["sliding_window_tokens"] else None,
        )
        for row in table("tr164", "derived_model_dims_external")
    }


def observations() -> list[Observation]:
    """The 25 knees that the contrasts publish."""
    known = shapes()
    return [
        Observation(
            row["family"],
            row["run"],
            known[_name(row["family"], row["model_size"])],
            int(row["context_tokens"]),
            float(row["observed_continuous_knee_batch"]),
        )
        for row in table("tr164", "derived_model_knees")
    ]


def contrasts() -> list[Contrast]:
    """The 17 matched-context contrasts."""
    known = shapes()
    return [
        Contrast(
            row["family"],
            row["run"],
            known[_name(row["family"], row["small_model"])],
            known[_name(row["family"], row["large_model"])],
            int(row["context_tokens"]),
            float(row["knee_small_batch"]),
            float(row["knee_large_batch"]),
            float(row["observed_ratio"]),
            float(row["predicted_ratio"]),
        )
        for row in table("tr164", "weight_axis_pair_contrasts")
    ]


def closed_form(sliding: bool = False, fixed_bytes: float = 0.0) -> Predictor:
    """Knee of the two-term step. `fixed_bytes` adds a cost per step, as bytes of weights; the published form has none."""

    def predict(shape: Shape, context_tokens: int) -> float:
        return float(closed_form_knee(shape.kv_bytes(context_tokens, sliding) / (shape.params * FP8_BYTES + fixed_bytes), TAU))

    return predict


def right_signs(predict: Predictor, pairs: list[Contrast]) -> int:
    """Contrasts where the predicted ratio is on the observed side of one."""
    return sum((predict(p.large, p.context_tokens) > predict(p.small, p.context_tokens)) == (p.observed_ratio > 1) for p in pairs)


def _name(family: str, size: str) -> str:
    prefix = {"qwen2.5": "qwen2.5", "mistral": "mistral", "gemma3": "gemma3"}[family]
    return f"{prefix}-{size.lower()}"


def uncrossed() -> tuple[Shape, int, float]:
    """The one cell that never crossed: its model, context, and the last batch tried (protocol_constants, censored_cell)."""
    text = next(row["value"] for row in table("tr164", "protocol_constants") if row["key"] == "censored_cell")
    name, context, last = text.split(" ")[0], text.split("ctx")[1].split(":")[0], text.rsplit(" ", 1)[1]
    return shapes()[name], int(context), float(last)
