"""Every argument a kernel could answer wrongly for is refused with a ValueError that begins with its name."""

from collections.abc import Callable

import pytest
import torch

from kernels import host_gather, partials, selector, summaries
from kernels.dense_decode import dense_decode
from kernels.gather_decode import gather_decode
from kernels.gdn_decode import gdn_decode
from tests.kernels import caches


def good() -> dict[str, torch.Tensor]:
    c = caches.make(0, [40, 20])
    return {"q": c.q, "k_cache": c.k, "v_cache": c.v, "seq_lens": c.seq_lens, "page_table": c.table}


ATTENTION: list[tuple[str, Callable[[dict], dict]]] = [
    ("q", lambda a: a | {"q": a["q"].double()}),
    ("q", lambda a: a | {"q": a["q"].transpose(0, 1)}),
    ("q", lambda a: a | {"q": a["q"][:0]}),
    ("q", lambda a: a | {"q": a["q"][:, :5].contiguous()}),
    ("q", lambda a: a | {"q": a["q"][..., :24].contiguous(), "k_cache": a["k_cache"][..., :24], "v_cache": a["v_cache"][..., :24]}),
    ("q", lambda a: a | {"q": None}),
    ("k_cache", lambda a: a | {"k_cache": a["k_cache"].half()}),
    ("k_cache", lambda a: a | {"k_cache": a["k_cache"].transpose(2, 3)}),
    ("k_cache", lambda a: a | {"page_table": None, "k_cache": a["k_cache"][:1], "v_cache": a["v_cache"][:1]}),
    ("k_cache page", lambda a: a | {"k_cache": a["k_cache"][:, :, :12], "v_cache": a["v_cache"][:, :, :12]}),
    ("v_cache", lambda a: a | {"v_cache": a["v_cache"][:1]}),
    ("seq_lens", lambda a: a | {"seq_lens": a["seq_lens"].long()}),
    ("seq_lens", lambda a: a | {"seq_lens": a["seq_lens"][:1]}),
    ("page_table", lambda a: a | {"page_table": a["page_table"].long()}),
    ("page_table", lambda a: a | {"page_table": a["page_table"][:1]}),
    ("k_cache", lambda a: a | {"k_cache": a["k_cache"].to("meta")}),
    ("v_cache", lambda a: a | {"v_cache": a["v_cache"].to("meta")}),
    ("seq_lens", lambda a: a | {"seq_lens": a["seq_lens"].to("meta")}),
    ("page_table", lambda a: a | {"page_table": a["page_table"].to("meta")}),
    ("out", lambda a: a | {"out": a["q"].float()}),
    ("workspace", lambda a: a | {"workspace": partials.Workspace.allocate(1, 1, 1, 16, a["q"].device), "splits": 9, "tile": 16}),
]


@pytest.mark.parametrize(("named", "change"), ATTENTION)
def test_dense_decode(named: str, change: Callable[[dict], dict]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        dense_decode(**change(good()))


ONE_HEAD = {"tma": True, "heads": 1, "tile": 16}


@pytest.mark.parametrize(("named", "options"), [
    ("sink", {"sink": 4}), ("sink", {"sink": -1, "window": 4}), ("window", {"window": 0}), ("splits", {"splits": 0}),
    ("max_tokens", {"max_tokens": 0}), ("heads", {"heads": 3}), ("heads", {"heads": 2, "tma": False}), ("heads", {"heads": 0}),
    ("tile", {"tile": 24}), ("per_sm", {"per_sm": 0}), ("queued", {"queued": 0.5, "tma": False}), ("queued", {**ONE_HEAD, "queued": 1.5}),
    ("chunks", {"chunks": 3}), ("chunks", {**ONE_HEAD, "queued": 0.5, "chunks": 0}), ("halves", {"halves": True}),
    ("tma", {"tma": True, "tile": 64}), ("tma", {"tma": True, "window": 8}), ("scale", {"scale": float("nan")}),
])  # fmt: skip
def test_dense_decode_options(named: str, options: dict) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        dense_decode(**good(), **options)


def chosen(k: int = 1, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((2, 2, k), 1, dtype=dtype, device=caches.DEVICE)


@pytest.mark.parametrize(("named", "change"), [c for c in ATTENTION if c[0] != "workspace"])
def test_gather_decode(named: str, change: Callable[[dict], dict]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        gather_decode(**change(good()), selected=chosen())


@pytest.mark.parametrize(("named", "options"), [
    ("selected", {"selected": chosen(dtype=torch.int64)}), ("selected", {"selected": chosen()[:1]}),
    ("selected", {"selected": chosen(400)}), ("block", {"selected": chosen(), "block": 20}),
    ("tile", {"selected": chosen(), "tile": 8}), ("sink_blocks", {"selected": chosen(), "sink_blocks": -1}),
    ("local_blocks", {"selected": chosen(), "local_blocks": 0}), ("v_host", {"selected": chosen(), "k_host": good()["k_cache"].cpu()}),
    ("stage_page", {"selected": chosen(), "stage_page": 0}), ("scale", {"selected": chosen(), "scale": float("inf")}),
    ("stage_page", {"selected": chosen(), "block": 16, "stage_page": 10**6}),
])  # fmt: skip
def test_gather_decode_options(named: str, options: dict) -> None:
    if named == "v_host" and torch.cuda.is_available():
        named = "k_host"
    with pytest.raises(ValueError, match=f"^{named}:"):
        gather_decode(**good(), **options)


def made(kind: str = "minmax", dtype: torch.dtype = torch.bfloat16) -> summaries.Summaries:
    return summaries.allocate(2, 2, 4, 32, kind=kind, dtype=dtype, device=caches.DEVICE, block=16)


@pytest.mark.parametrize(("named", "options"), [
    ("k", {"k": 0}), ("k", {"k": 5}), ("q", {"q": caches.make(0, [9, 9]).q[:, :5].contiguous()}), ("q", {"q": None}),
    ("summaries", {"summaries": made(dtype=torch.float16)}), ("summaries", {"q": caches.make(0, [9]).q}),
    ("seq_lens", {"seq_lens": torch.ones(2, device=caches.DEVICE)}), ("sink_blocks", {"sink_blocks": -1}),
    ("local_blocks", {"local_blocks": 0}), ("chunk", {"chunk": 24}), ("out", {"out": chosen(3)}),
    ("scores", {"scores": torch.zeros(2, 2, 3, device=caches.DEVICE)}),
    ("workspace", {"workspace": selector.SelectorWorkspace.allocate(1, 1, 16, caches.DEVICE)}),
])  # fmt: skip
def test_select(named: str, options: dict) -> None:
    args = {"q": good()["q"], "summaries": made(), "seq_lens": good()["seq_lens"], "k": 1, **options}
    with pytest.raises(ValueError, match=f"^{named}:"):
        selector.select(**args)


@pytest.mark.parametrize(("named", "options"), [("kind", {"kind": "median"}), ("block", {"block": 12})])
def test_summaries(named: str, options: dict) -> None:
    args = {"kind": "minmax", "dtype": torch.bfloat16, "device": "cpu", "block": 16, **options}
    with pytest.raises(ValueError, match=f"^{named}:"):
        summaries.allocate(1, 1, 4, 32, **args)
    with pytest.raises(ValueError, match=r"^k_cache:"):
        summaries.build(made(), good()["k_cache"][:, :1], good()["seq_lens"], good()["page_table"])


@pytest.mark.parametrize(("named", "options"), [
    ("qkv", {"qkv": torch.zeros(2, 50)}), ("qkv", {"qkv": torch.zeros(2, 64).long()}),
    ("state", {"state": torch.zeros(2, 1, 16, 16).half()}),
    ("state", {"state": torch.zeros(3, 1, 16, 16)}), ("state", {"state": torch.zeros(2, 1, 16, 32, device=caches.DEVICE)[..., :16]}),
    ("state K", {"state": torch.zeros(2, 1, 16, 20)}), ("key_heads", {"key_heads": 0}), ("key_heads", {"key_heads": 3}),
    ("decay", {"decay": torch.zeros(2, 2)}), ("beta", {"beta": torch.zeros(1, 1)}), ("dt_bias", {"a_log": torch.zeros(1)}),
    ("slots", {"slots": torch.zeros(2)}), ("tile_v", {"tile_v": 12}), ("scale", {"scale": float("nan")}),
    ("out", {"out": torch.zeros(2, 1, 8)}),
])  # fmt: skip
def test_gdn_decode(named: str, options: dict) -> None:
    args = {"qkv": torch.zeros(2, 48), "decay": torch.zeros(2, 1), "beta": torch.zeros(2, 1), "state": torch.zeros(2, 1, 16, 16)}
    args = {k: v.to(caches.DEVICE) if isinstance(v, torch.Tensor) else v for k, v in {**args, "key_heads": 1, **options}.items()}
    with pytest.raises(ValueError, match=f"^{named}:"):
        gdn_decode(**args)


@pytest.mark.parametrize(("named", "options"), [
    ("selected", {"selected": chosen(dtype=torch.int64)}), ("stage_page", {"stage_page": 10**6}), ("tile", {"tile": 12}),
    ("programs", {"programs": 0}), ("page_table", {"page_table": good()["page_table"][:1]}),
])  # fmt: skip
def test_stage(named: str, options: dict) -> None:
    a = good()
    host = [x.cpu().pin_memory() if torch.cuda.is_available() else x for x in (a["k_cache"], a["v_cache"])]
    args = {"k_host": host[0], "v_host": host[1], "page_table": a["page_table"], "selected": chosen(), "k_cache": a["k_cache"],
            "v_cache": a["v_cache"], "stage_page": 0, "tile": 16, **options}  # fmt: skip
    with pytest.raises(ValueError, match=f"^{named}:"):
        host_gather.stage(**args)


def test_more_pairs_of_sequence_and_head_than_a_launch_can_hold() -> None:
    batch = 2**15
    q, cache = (torch.zeros(batch if i == 0 else 1, 2, 16, 16)[:, :, : 1 if i == 0 else 16] for i in range(2))
    lens, table = (torch.ones(shape, dtype=torch.int32) for shape in ((batch,), (batch, 1)))
    with pytest.raises(ValueError, match=r"^q: 32768 sequences of 2 heads"):
        dense_decode(q[:, :, 0].contiguous(), cache, cache, lens, table)
    with pytest.raises(ValueError, match=r"^qkv: 65536 sequences of 1 heads"):
        gdn_decode(
            torch.zeros(2 * batch, 48), lens.repeat(2)[:, None].float(), torch.zeros(2 * batch, 1), torch.zeros(1, 1, 16, 16), key_heads=1
        )
