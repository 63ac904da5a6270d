"""A server's flag is a setting here, known to change no time, or refuses the question by its name."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.other_flags import MOVES, SMALL, known_without_effect, refusal
from sim.engine.server_flags import FLAGS, SWITCHES, NotSimulated, read_flag, split_flags
from sim.errors import UsageError

# Flags as people write them, by engine, with a value that changes what a server does
MOVING = [
    ("vllm", "decode-context-parallel-size", "2"),
    ("vllm", "dcp", "8"),
    ("vllm", "cpu-offload-gb", "40"),
    ("vllm", "enable-dbo", ""),
    ("vllm", "hf-overrides", '{"num_experts": 64}'),
    ("vllm", "disable-hybrid-kv-cache-manager", ""),
    ("vllm", "mamba-ssm-cache-dtype", "bfloat16"),
    ("vllm", "scheduler-cls", "my.Scheduler"),
    ("vllm", "additional-config", '{"sparse_decode": {"k": 32}}'),
    ("vllm", "task", "embed"),
    ("vllm", "connector", "kvbm"),
    ("vllm", "runner", "pooling"),
    ("sglang", "is-embedding", ""),
    ("sglang", "speculative-algorithm", "EAGLE"),
    ("sglang", "speculative-num-draft-tokens", "4"),
    ("sglang", "enable-hierarchical-cache", ""),
    ("sglang", "hicache-ratio", "2"),
    ("sglang", "enable-two-batch-overlap", ""),
    ("sglang", "schedule-conservativeness", "0.3"),
    ("llamacpp", "n-cpu-moe", "20"),
    ("llamacpp", "cpu-moe", ""),
    ("llamacpp", "ot", "exps=CPU"),
    ("llamacpp", "tensor-split", "3,1"),
    ("llamacpp", "no-kv-offload", ""),
    ("llamacpp", "model-draft", "small.gguf"),
    ("llamacpp", "swa-full", ""),
]
HARMLESS = [
    ("vllm", "decode-context-parallel-size", "1"),
    ("vllm", "cpu-offload-gb", "0"),
    ("vllm", "hf-overrides", "{}"),
    ("vllm", "task", "generate"),
    ("sglang", "schedule-conservativeness", "1.0"),
    ("llamacpp", "n-cpu-moe", "0"),
    ("vllm", "served-model-name", "x"),
    ("llamacpp", "temp", "0.7"),
    ("sglang", "watchdog-timeout", "300"),
]


@pytest.mark.parametrize(("engine", "flag", "value"), MOVING)
def test_what_moves_the_answer_refuses_it(engine, flag, value):
    with pytest.raises(NotSimulated, match=rf"^serve\.sh: --{flag}\b.*without it in the file, the rest is answered$"):
        read_flag("serve.sh", engine, flag, value, {})


@pytest.mark.parametrize(("engine", "flag", "value"), HARMLESS)
def test_the_same_at_its_default_or_a_name_says_nothing(engine, flag, value):
    options = {}
    assert read_flag("serve.sh", engine, flag, value, options) == ""
    assert options == {}


def test_an_unknown_flag_asks_back():
    with pytest.raises(NotSimulated, match=r"--enable-warp-drive is not known here: whether it moves the answer is not"):
        read_flag("serve.sh", "vllm", "enable-warp-drive", "", {})


@pytest.mark.parametrize("pattern", SMALL)
def test_what_is_let_be_has_a_reason(pattern):
    flag = pattern.split("|")[-1].replace(".*", "x").replace("(no-)?", "").split("(")[0].rstrip("-") or "swap-space"
    assert SMALL[pattern]
    assert known_without_effect(flag) is None or not refusal(flag, "2")


def test_no_flag_is_both_a_setting_and_refused():
    for engine, known in FLAGS.items():
        for flag in (*known, *SWITCHES):
            assert not refusal(flag, "2"), (engine, flag)
    assert all(what for _, what in MOVES.values())


@pytest.mark.parametrize("flag", ["kv-offloading-backend", "connector"])
def test_lmcache_by_a_flag_keeps_its_chunks(flag):
    options = {}
    assert read_flag("serve.sh", "vllm", flag, "lmcache", options) == ""
    assert options == {"lmcache": True, "options": {"chunk_tokens": 256}}


@given(st.floats(1, 4096), st.sampled_from(["OffloadingConnector", "SimpleCPUOffloadConnector"]), st.booleans())
def test_host_memory_of_a_connector_is_that_of_the_option(gib, connector, within):
    said = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": int(gib * 2**30)}}
    if within:
        said = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [{"kv_connector": "NixlConnector"}, said]}}
    options = {}
    assert read_flag("f", "vllm", "kv-transfer-config", json.dumps(said), options) == ""
    assert options == {"kv_offloading_size": pytest.approx(gib, rel=1e-9)}
    by_option = {}
    read_flag("f", "vllm", "kv-offloading-size", str(gib), by_option)
    assert by_option["kv_offloading_size"] == pytest.approx(gib)


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        ({"store_threshold": 3, "max_tracker_size": 100}, {"store_threshold": 3, "max_tracker_size": 100}),
        ({"store_threshold": 2, "block_size": 64}, {"store_threshold": 2, "chunk_tokens": 64}),
        ({"store_threshold": 1, "max_tracker_size": 100}, {}),  # counts nothing
    ],
)
def test_rules_of_host_memory_are_engine_options(extra, options):
    said = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 2**30, **extra}}
    found = {}
    read_flag("f", "vllm", "kv-transfer-config", json.dumps(said), found)
    assert found == {"kv_offloading_size": 1.0} | ({"options": options} if options else {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "needs a JSON object"),
        ('{"kv_connector": "HF3FSConnector"}', "connector HF3FSConnector is not simulated"),
        ('{"kv_connector": "OffloadingConnector"}', "gives no cpu_bytes_to_use"),
        (
            '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"eviction_policy": "arc"}}',
            'eviction_policy "arc" is not',
        ),
        ('{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"store_threshold": -2}}', "store_threshold -2 is no whole"),
        ('{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"blocks_per_chunk": 2}}', "blocks_per_chunk 2 is not"),
        ('{"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": {"lazy_offload": true}}', "lazy_offload true is not"),
        ('{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": "much"}}', "must be a number"),
        ('{"kv_connector": "NixlConnector", "kv_connector_extra_config": 3}', "must be a JSON object"),
    ],
)
def test_a_connector_that_cannot_be_read_is_one_line(text, says):
    with pytest.raises(UsageError, match=says):
        read_flag("f", "vllm", "kv-transfer-config", text, {})


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_next_mtp", "glm4_moe_mtp"])
def test_the_models_own_head_is_a_drafter(method):
    options = {}
    read_flag("f", "vllm", "speculative-config", json.dumps({"method": method, "num_speculative_tokens": 2}), options)
    assert options == {"options": {"draft_tokens": 2, "drafter": "mtp"}}


@pytest.mark.parametrize(("value", "kept"), [("fp8_e4m3", "fp8"), ("auto", None), ("bfloat16", "bf16")])
def test_a_cache_of_a_width_without_rates_is_refused(value, kept):
    options = {}
    read_flag("f", "vllm", "kv-cache-dtype", value, options)
    assert options.get("kv_dtype") == kept
    with pytest.raises(UsageError, match="--kv-cache-dtype nvfp4 is not simulated"):
        read_flag("f", "vllm", "kv-cache-dtype", "nvfp4", {})


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--speculative_config.method ngram --speculative_config.num_speculative_tokens=3", {"draft_tokens": 3, "drafter": "ngram"}),
        ("--spec-method mtp --spec-tokens 2", {"draft_tokens": 2, "drafter": "mtp"}),
        ("-cc.cudagraph_mode=PIECEWISE", {"decode_pieces": True}),
        ("-O1", {"decode_pieces": True}),
        ("--kv-cache-memory-bytes 20G", {"kv_cache_memory_bytes": 20 << 30}),
    ],
)
def test_parts_of_an_object_are_put_together(words, options):
    assert read_all(words)["options"] == options


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("-O0", {"enforce_eager": True}),
        ("-O.cudagraph_mode=NONE", {"enforce_eager": True}),
        ("-O3", {}),
        ("-O 2", {}),
        ("--enable-chunked-prefill False", {"enable_chunked_prefill": False}),
        ("--enable-prefix-caching=false --enforce-eager", {"enable_prefix_caching": False, "enforce_eager": True}),
        ("""--limit-mm-per-prompt '{"image": 0, "video": 0}'""", {"options": {"language_model_only": True}}),
        ("--max-num-batched-tokens 16k", {"max_num_batched_tokens": 16_000}),
        ("--max-model-len 16K", {"max_model_len": "16384"}),
        ("--max-model-len -1", {"max_model_len": "auto"}),
        ("""--hf-overrides '{"rope_parameters": {"rope_type": "yarn"}}'""", {"positions": "hf-overrides"}),
    ],
)
def test_levels_and_letters_are_vllms(words, setting):
    assert read_all(words) == setting


def read_all(words):
    found = {}
    for flag, value in split_flags("vllm", shlex.split(words)):
        assert read_flag("serve.sh", "vllm", flag, value, found) == ""
    return found
