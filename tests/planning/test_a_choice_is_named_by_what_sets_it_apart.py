"""A deployment's name in a plan says its GPUs and the value of each option of which there are several."""

from sim import deployments


def test_names():
    found = deployments("Llama-3.1-8B", ["H100"], tp=[1, 2], dtype=["bf16", "fp8"], max_num_seqs=[64, 128])
    assert list(found)[:3] == ["1 x H100 bf16 max-num-seqs 64", "1 x H100 bf16 max-num-seqs 128", "1 x H100 fp8 max-num-seqs 64"]
    assert list(deployments("Llama-3.1-8B", ["H100"], router=["round-robin", "lmetric"])) == ["1 x H100 round-robin", "1 x H100 lmetric"]
