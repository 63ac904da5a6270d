"""Stacks that no list of layer kinds describes: pruned Llamas (Nemotron-NAS), LongCat's double layers, DeepSeek V4's compressed caches."""

from __future__ import annotations

from dataclasses import replace

from sim.specs.blocks import Matrix
from sim.specs.fields import Fields
from sim.specs.mixers import Attention, CompressedAttention, LatentAttention, Mixer, NoMixer
from sim.specs.mlps import DenseMlp, Mlp, MoeMlp, NoMlp
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.recurrences import mamba2
from sim.specs.stacks import layer_count, numbers, stacked


def nemotron_nas(c: Fields) -> ModelSpec:
    """Llama pruned block by block: `block_configs` say each layer's KV heads and MLP width, or that it has none."""
    hidden, heads, blocks = c.int("hidden_size"), c.int("num_attention_heads"), c.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layer_count(c):
        raise c.fail("block_configs", f"must be a list of {layer_count(c)} blocks")
    members: dict[tuple[Mixer, Mlp, int], list[int]] = {}
    for layer, block in enumerate(blocks):
        own = Fields(block, c.where, f"{c.prefix}block_configs[{layer}]")
        a, f = own.section("attention"), own.section("ffn")
        for part in (a, f):
            if part.bool("replace_with_linear", False):
                raise part.fail("replace_with_linear", "is unsupported when true")
        mixer: Mixer = NoMixer()
        if not a.bool("no_op", False):
            mixer = Attention(heads, heads // a.int("n_heads_in_group"), c.int("head_dim", hidden // heads))
        mlp: Mlp = NoMlp()
        if not f.bool("no_op", False):
            width = int(2 * f.positive("ffn_mult") * hidden / 3)
            mlp = DenseMlp(-(-width // 256) * 256)
        norms = (mixer.kind != "none") + (mlp.kind != "none")
        members.setdefault((mixer, mlp, norms), []).append(layer)
    return stacked(c, members)


def longcat(c: Fields) -> ModelSpec:
    """LongCat Flash: two latent attentions and two dense MLPs in each layer, and one mixture beside them with experts that do nothing."""
    layers = c.int("num_layers" if c.has("num_layers") else "num_hidden_layers")
    rank = c.int("q_lora_rank") if c.has("q_lora_rank") else None
    ranks = (c.int("num_attention_heads"), rank, c.int("kv_lora_rank"), c.int("qk_nope_head_dim"), c.int("qk_rope_head_dim"))
    mixer = LatentAttention(*ranks, c.int("v_head_dim"))
    dense = DenseMlp(c.int("ffn_hidden_size"))
    inner = c.int("expert_ffn_hidden_size")
    experts = MoeMlp(
        c.int("n_routed_experts"), c.int("moe_topk"), inner, router_bias=True, idle_experts=c.int("zero_expert_num", 0, minimum=0)
    )
    tables = _ngram_tables(c)
    found = stacked(c, {(mixer, dense, 2): list(range(2 * layers)), (NoMixer(), experts, 0): list(range(layers))}, extra_params=tables)
    return replace(found, groups=tuple(replace(group, indices=()) for group in found.groups))


def zamba2(c: Fields) -> ModelSpec:
    """Zamba2: Mamba-2 in every layer; before some of them one of a few shared transformer blocks, which read the embedding, too.

    A block's weights are stored once and read at every place where it stands.
    """
    hidden, layers, shared = c.int("hidden_size"), layer_count(c), c.int("num_mem_blocks", 1)
    places = tuple(numbers(c, "hybrid_layer_ids"))
    if c.bool("use_shared_attention_adapter", False):
        raise c.fail("use_shared_attention_adapter", "is unsupported when true")
    heads, inner = c.int("n_mamba_heads"), c.int("mamba_expand", 2) * hidden
    recurrent = mamba2(hidden, heads, inner // heads, c.int("mamba_ngroups", 1), c.int("mamba_d_state"), c.int("mamba_d_conv", 4))
    width = c.int("attention_head_dim", 2 * hidden // c.int("num_attention_heads"))
    attention = Attention(c.int("num_attention_heads"), c.int("num_key_value_heads", c.int("num_attention_heads")), width)
    attention = replace(attention, extra_params=(attention.heads + 2 * attention.kv_heads) * width * hidden)  # inputs are twice as wide
    mlp = DenseMlp(c.int("intermediate_size"))
    rank = c.int("adapter_rank", 128)
    extra = (
        Matrix("linear", hidden, hidden),
        Matrix("shared_transformer.adapter_a", rank, hidden),
        Matrix("shared_transformer.adapter_b", 2 * mlp.intermediate, rank),
    )
    block = LayerGroup(len(places), attention, mlp, 3, extra=extra, indices=places)
    repeated = (len(places) - shared) * (attention.params(hidden) + mlp.params(hidden) + 3 * hidden)
    spec = stacked(c, {(recurrent, NoMlp(), 1): list(range(layers))}, extra_params=-repeated)
    return replace(spec, groups=(*spec.groups, block), tied_embeddings=c.bool("tie_word_embeddings", True))


def _ngram_tables(c: Fields) -> int:
    """Embeddings of hashed n-grams and their projections, looked up beside the tokens'; 0 without."""
    if not c.has("ngram_vocab_size_ratio"):
        return 0
    count = c.int("emb_split_num") * (c.int("emb_neighbor_num") - 1)
    hidden, first = c.int("hidden_size"), int(c.positive("ngram_vocab_size_ratio") * c.int("vocab_size"))
    width = hidden // count
    return width * sum(first + 2 * i + 1 for i in range(count)) + count * width * hidden


def deepseek_v4(c: Fields) -> ModelSpec:
    """DeepSeek V4: a window of whole tokens in every layer; beyond it one entry for each 4 tokens, of which an indexer selects, or for each
    128; hyper-connections around every block.
    """
    hidden, layers, streams = c.int("hidden_size"), layer_count(c), c.int("hc_mult", 4)
    ratios = _ratios(c, layers)
    members: dict[tuple[Mixer, Mlp, int], list[int]] = {}
    inner = c.int("moe_intermediate_size")
    experts, shared = c.int("n_routed_experts"), inner * c.int("n_shared_experts", 0, minimum=0)
    hashed = c.int("num_hash_layers", 3, minimum=0)
    for layer, ratio in enumerate(ratios):
        mixer = CompressedAttention(
            heads=c.int("num_attention_heads"),
            head_dim=c.int("head_dim"),
            q_rank=c.int("q_lora_rank"),
            out_groups=c.int("o_groups"),
            out_rank=c.int("o_lora_rank"),
            window=c.int("sliding_window"),
            ratio=ratio,
            index_heads=c.int("index_n_heads") if ratio == SPARSE_RATIO else 0,
            index_dim=c.int("index_head_dim"),
            top_k=c.int("index_topk"),
        )
        bias = layer >= hashed  # the first layers choose experts by a hash of the token
        mlp = MoeMlp(experts, c.int("num_experts_per_tok"), inner, shared, router_bias=bias)
        members.setdefault((mixer, mlp, 2), []).append(layer)
    mixes = (2 + streams) * streams
    extra = (Matrix("attn_hc.fn", mixes, streams * hidden, kept=True), Matrix("ffn_hc.fn", mixes, streams * hidden, kept=True))
    note = "num_nextn_predict_layers: multi-token-prediction layers are not loaded unless drafts are asked for, and not counted."
    return stacked(
        c,
        members,
        each={"extra": extra, "extra_params": 2 * (mixes + 3)},
        extra_params=streams * streams * hidden + streams + 1,
        notes=(note,) if c.data.get("num_nextn_predict_layers") else (),
    )


SPARSE_RATIO = 4


def _ratios(c: Fields, layers: int) -> list[int]:
    """Tokens to an entry of the compressed cache by layer, 0 where there is none; a file may list draft layers, too."""
    if c.has("compress_ratios"):
        given = numbers(c, "compress_ratios")
        if len(given) < layers:
            raise c.fail("compress_ratios", f"has {len(given)} entries for {layers} layers")
        return given[:layers]
    rates = c.section("compress_rates")
    words = {"sliding_attention": 0} | {name: rates.int(name) for name in rates.data}
    return [words[word] for word in c.texts("layer_types", words)]
