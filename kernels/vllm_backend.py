"""Attention backend of vLLM: decodes by block-sparse attention over the engine's paged cache, prompts by the engine's FlashAttention.

Needs vLLM 0.23 and a GPU with FlashAttention 3 (Hopper). `vllm_plugin` registers it; settings stand under `sparse_decode` in the
engine's --additional-config (`sparse_decode.Settings`). The cache is the engine's, in pages of 128 tokens: prefix caching, preemption,
chunked prefill, CUDA graphs of decode batches and tensor parallelism are its own. A decode step launches per layer: the engine's
attention for sequences that are read whole, the summary of pages just filled, scoring, picking, gathering, merging.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills
from vllm.v1.kv_cache_interface import AttentionSpec

from kernels import checks, page_summaries, sparse_decode
from kernels.sparse_decode import BLOCK, Scratch, Settings, SparseLayer


def settings_of(config: VllmConfig) -> Settings:
    """Settings of an engine. `ValueError` for what block-sparse decode does not serve."""
    parallel = config.parallel_config
    if parallel.decode_context_parallel_size > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        raise ValueError("sparse decode: no context parallelism")
    if config.kv_transfer_config is not None:
        raise ValueError("sparse decode: a KV connector writes pages past the summaries")
    return Settings.parse(config.additional_config.get("sparse_decode", {}))


@functools.cache
def shared_scratch(settings: Settings, sequences: int, blocks: int, heads_q: int, heads_kv: int, d: int, device: torch.device) -> Scratch:
    """One set of buffers for all layers of a shape."""
    return Scratch.allocate(settings, sequences, blocks, heads_q, heads_kv, d, device)


class SparseDecodeBackend(FlashAttentionBackend):
    """What the engine may ask of it: causal decoders with full attention, 16-bit KV, heads of 16 to 256 channels in powers of two."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SparseDecodeImpl]:
        return SparseDecodeImpl

    @staticmethod
    def get_builder_cls() -> type[SparseDecodeMetadataBuilder]:
        return SparseDecodeMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [BLOCK]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return checks.is_power_of_two(head_size) and 16 <= head_size <= 256

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        return kv_cache_dtype in (None, "auto", "float16", "bfloat16")

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_sink(cls) -> bool:
        return False

    @classmethod
    def supports_non_causal(cls) -> bool:
        return False

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False


@dataclass
class SparseDecodeMetadata(FlashAttentionMetadata):
    """The engine's metadata, of which `seq_lens` are those of sequences read whole, 0 for the others.

    all_lens [B]: tokens of each sequence; sparse_lens [B]: those of block-sparse sequences, 0 for the others; the first `decodes` sequences
    have one new token each; `whole` is False where no sequence can be read whole.
    """

    all_lens: torch.Tensor = field(default=None)  # type: ignore[assignment]
    sparse_lens: torch.Tensor = field(default=None)  # type: ignore[assignment]
    decodes: int = 0
    whole: bool = True


class SparseDecodeMetadataBuilder(FlashAttentionMetadataBuilder):
    """Splits each batch into sequences read whole and block-sparse ones; on the device, so that a captured graph serves any batch."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.settings = settings_of(vllm_config)
        self._init_reorder_batch_threshold(1)  # decoding sequences first
        most = most_sequences(vllm_config)
        self.sparse_lens = torch.zeros(most, dtype=torch.int32, device=device)
        self.dense_lens = torch.zeros(most, dtype=torch.int32, device=device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> SparseDecodeMetadata:
        common = common_attn_metadata
        decodes, prompts, _, _ = split_decodes_and_prefills(common, decode_threshold=1)
        first = self.settings.crossover(decodes)
        sparse, dense = sparse_decode.split_lens(common.query_start_loc, common.seq_lens, first, self.sparse_lens, self.dense_lens)
        base = super().build(0, common.replace(seq_lens=dense), fast_build)
        return SparseDecodeMetadata(
            **vars(base), all_lens=common.seq_lens, sparse_lens=sparse, decodes=decodes, whole=prompts > 0 or self.settings.dense_below != 0
        )

    def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
        return False


def most_sequences(config: VllmConfig) -> int:
    """Sequences of the largest batch, a padded one of a captured graph included."""
    return max(config.scheduler_config.max_num_seqs, config.compilation_config.max_cudagraph_capture_size or 0)


class SparseDecodeImpl(FlashAttentionImpl):
    """One layer. The summaries lie beside its cache; they are made when the engine hands the cache over, in its first step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain = self.sliding_window == (-1, -1) and self.alibi_slopes is None and not self.logits_soft_cap and self.sinks is None
        if not plain or self.kv_sharing_target_layer_name is not None:
            raise ValueError(
                "sparse decode: layers with a sliding window, ALiBi, a soft cap, sinks or another layer's cache are not served"
            )
        config = get_current_vllm_config()
        self.settings = settings_of(config)
        self.most, self.blocks = most_sequences(config), sparse_decode.blocks_of(config.model_config.max_model_len)
        self.layer: SparseLayer | None = None

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: SparseDecodeMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As FlashAttention's; then the block-sparse rows of `output` are written."""
        if attn_metadata is None:
            return output.fill_(0)
        meta, mine = attn_metadata, self.of(kv_cache)
        table = meta.block_table[:, : self.blocks]
        mine.update(table, meta.query_start_loc, meta.all_lens, meta.max_query_len)
        if meta.whole or output_scale is not None or output_block_scale is not None:
            super().forward(layer, query, key, value, kv_cache, meta, output, output_scale, output_block_scale)
        if n := meta.decodes:
            mine.attend(query[:n], table[:n], meta.sparse_lens[:n], output[:n], self.scale)
        return output

    def summarise(self, kv_cache: torch.Tensor) -> None:
        """Summarise every page as if it were full: after contexts were put into the cache and not computed."""
        mine = self.of(kv_cache)
        page_summaries.build(mine.summaries, mine.k_cache)

    def of(self, kv_cache: torch.Tensor) -> SparseLayer:
        """This layer's state beside the engine's cache [pages, 2, 128, KV heads, D]; made anew when the engine makes the cache anew."""
        if self.layer is None or self.layer.k_cache.data_ptr() != kv_cache.data_ptr() or self.layer.k_cache.shape[0] != kv_cache.shape[0]:
            keys, values = (half.transpose(1, 2) for half in kv_cache.unbind(1))
            scratch = shared_scratch(
                self.settings, self.most, self.blocks, self.num_heads, self.num_kv_heads, self.head_size, kv_cache.device
            )
            self.layer = SparseLayer(self.settings, keys, values, scratch)
        return self.layer
