"""GGUF types by name (q4_k_m, q8_0, mxfp4_moe): which tensor llama.cpp's quantiser stores in which block format.

Bits are those of the block formats, scales included; rules are `llama_tensor_get_type` of llama.cpp for models without its special cases
(Falcon, eight experts). Norms and biases keep 32 bits. Rows that 256 does not divide take a format of blocks of 32.
"""

from __future__ import annotations

from sim.specs.blocks import Matrix
from sim.specs.storage import Storage

BITS = {
    "q2_k": 2.625,
    "q3_k": 3.4375,
    "q4_0": 4.5,
    "q4_1": 5.0,
    "q4_k": 4.5,
    "q5_0": 5.5,
    "q5_1": 6.0,
    "q5_k": 5.5,
    "q6_k": 6.5625,
    "q8_0": 8.5,
    "iq4_nl": 4.5,
    "iq4_xs": 4.25,
    "mxfp4": 4.25,
}
_SUPER = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl"}  # blocks of 256, and else
# file type: (base, values and down projections where they get more bits, output projection)
_MIXED = {"q4_k_m": ("q4_k", "q6_k"), "q5_k_m": ("q5_k", "q6_k")}
_PLAIN = {"q4_0": "q4_0", "q4_1": "q4_1", "q5_0": "q5_0", "q5_1": "q5_1", "q6_k": "q6_k", "q8_0": "q8_0"}
_FIRST = {"q4_k_s": ("q4_k", "q5_k"), "iq4_xs": ("iq4_xs", "q5_k"), "iq4_nl": ("iq4_nl", "q5_k"), "q5_k_s": ("q5_k", "q5_k")}
GGUF = (*_PLAIN, *_MIXED, *_FIRST, "q3_k_m", "q2_k", "mxfp4_moe")
NORM_BYTES = 4.0


def nominal_bytes(name: str) -> float:
    """Bytes of most weights of a file of this type."""
    base = _PLAIN.get(name) or {**_MIXED, **_FIRST}.get(name, (name.rsplit("_", 1)[0],))[0]
    return BITS.get(base, BITS["q2_k"] if name == "q2_k" else BITS["mxfp4"]) / 8


def storage(name: str, matrix: Matrix, layer: int | None, layers: int, grouped: bool, tied: bool) -> Storage:
    """Storage of a matrix in a file of type `name`; `grouped` where several query heads share a KV head (4 or more)."""
    kind = _type(name, matrix.name.rsplit(".", 1)[-1], "experts" in matrix.name, layer, layers, grouped, tied)
    if matrix.kept:
        return Storage("fp32", 32)
    if matrix.columns % 256 and kind in _SUPER:
        kind = _SUPER[kind]
    return Storage(name, BITS[kind])


def _type(name: str, leaf: str, expert: bool, layer: int | None, layers: int, grouped: bool, tied: bool) -> str:
    if name == "mxfp4_moe":
        return "mxfp4" if expert else "q8_0"
    if name in ("q8_0", "q6_k"):
        return _PLAIN[name]
    if leaf == "lm_head" or (leaf == "embed_tokens" and tied):
        return "q6_k"
    i = layer or 0
    more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
    value, down, out = leaf == "v_proj", leaf == "down_proj", leaf == "o_proj"
    if name in _MIXED:
        base, rich = _MIXED[name]
        return rich if (value or down) and more else base
    if name in _FIRST:
        base, rich = _FIRST[name]
        early = i < 4 if name == "q4_k_s" else grouped
        return rich if (value and early) or (down and i < layers // 8 and not name.startswith("iq")) else base
    if name == "q3_k_m":
        if value:
            return "q5_k" if i < 2 else "q4_k"
        if down:
            return "q5_k" if i < layers // 16 else "q4_k"
        return "q4_k" if out else "q3_k"
    if name == "q2_k":
        if value:
            return "q4_k" if grouped else "q3_k"
        return "q3_k" if down or out else "q2_k"
    return _PLAIN[name]
