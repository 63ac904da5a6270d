"""SGLang's own radix cache, stepped on a CPU without its kernels: the oracle of sim.engine.rows.radix.

The package is installed without its dependencies; of what it imports on the way, a few modules are neither there nor used by the cache.
They are stood in for by empty ones.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

PAGE = 4
ABSENT = frozenset({"orjson", "IPython", "torchvision", "gguf"})
Op = tuple[str, Any]
"""("match" | "insert", pages), ("lock", pages), ("unlock", number of the lock), ("evict", pages)."""


class _Anything(type):
    """A class that has every attribute: another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(name, (), {"__init__": lambda self, *a, **k: None, "__class_getitem__": classmethod(lambda c, _: c)})
        setattr(cls, name, made)
        return made


class _Empty(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "99"

    def __getattr__(self, name: str) -> Any:
        return getattr(_Anything("absent", (), {}), name)


class _Stand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: Any) -> Any:
        return _Empty(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


@cache
def engine() -> None:
    """Make the engine importable, with what it lacks stood in for, and publish its default configuration."""
    sys.meta_path.append(_Stand())
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    publish(ServerArgs(model_path="none", device="cpu", disable_overlap_schedule=True), role="scheduler")


def steps_of_engine(ops: Sequence[Op]) -> list[list[int]]:
    """What each operation gives, and then the evictable and protected pages."""
    engine()
    import torch
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    allocator = PagedTokenToKVPoolAllocator(4096 * PAGE, PAGE, torch.float16, "cpu", None, False)
    cache_ = UnifiedRadixCache(CacheInitParams(False, None, allocator, PAGE, tree_components=(ComponentType.FULL,)))
    locks: list[Any] = []
    log = []
    for name, what in ops:
        if name in ("match", "lock"):
            found = cache_.match_prefix(MatchPrefixParams(key=_key(what)))
            given = found.device_prefix_len // PAGE
            if name == "lock":
                locks.append(cache_.lock(found.last_device_node))
        elif name == "insert":
            value = allocator.alloc(len(what) * PAGE)
            given = cache_.insert(InsertParams(key=_key(what), value=value)).prefix_len // PAGE
        elif name == "unlock":
            given = 0
            if locks:
                cache_.unlock(locks.pop(what % len(locks)))
        else:
            given = cache_.evict(EvictParams(num_tokens=what * PAGE)).num_tokens_evicted // PAGE
        log.append([given, cache_.evictable_size() // PAGE, cache_.protected_size() // PAGE])
    return log


def steps_of_ours(ops: Sequence[Op]) -> list[list[int]]:
    """The same of sim.engine.rows.radix."""
    from sim.engine.config import EngineConfig
    from sim.engine.rows import layout as at
    from sim.engine.rows.made import make_core
    from sim.engine.rows.radix import evict, insert, lock, match, unlock

    config = EngineConfig("sglang", block_size=PAGE)
    e: Any = make_core(config, None, at.records(at.RequestRow, 0), np.zeros(0, dtype=np.int64), most_tokens=PAGE)
    s = e.engines[0]
    locks: list[int] = []
    pages = 0  # in the tree
    log = []
    for name, what in ops:
        if name in ("match", "insert", "lock"):
            r = len(e.requests)
            e.requests.append(at.RequestRow(names=len(e.names), depth=len(what)))
            e.names.extend(what)
            given = (insert if name == "insert" else match)(e, s, r, len(what))
            if name == "insert":
                pages += len(what) - given
            elif name == "lock":
                lock(e, s, s.found)
                locks.append(s.found)
        elif name == "unlock":
            given = 0
            if locks:
                unlock(e, s, locks.pop(what % len(locks)))
        else:
            given = evict(e, s, what)
            pages -= given
        log.append([given, s.evictable, pages - s.evictable])
    return log


def _key(pages: Sequence[int]) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", [1000 * page + i for page in pages for i in range(PAGE)]))
