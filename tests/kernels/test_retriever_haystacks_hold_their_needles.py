import pytest
import torch

from studies.kernel_checks import retriever


@pytest.mark.parametrize("paragraph", [0, 96])
def test_needles_and_distractors_lie_where_they_are_said_to(paragraph: int) -> None:
    gen = torch.Generator().manual_seed(1)
    tokens, keys, values, at = retriever.haystacks(3, 400, 5, 2, gen, first=40, last=60, paragraph=paragraph)
    rows = torch.arange(3)[:, None]
    assert torch.equal(torch.stack([tokens[rows, at - 2], tokens[rows, at - 1]], -1), keys)
    assert torch.equal(tokens[rows, at], values)
    assert int(at.min()) >= 42
    assert int(at.max()) < 340
    for b in range(3):
        for key in keys[b]:  # the needle and one distractor each hold the first token, and the second
            assert int((tokens[b] == key[0]).sum()) >= 2
            assert int((tokens[b] == key[1]).sum()) >= 2


def test_a_cache_made_in_parts_is_the_whole_one() -> None:
    model, tokens = retriever.Retriever(), torch.randint(retriever.VOCAB, (2, 50))
    for whole, parts in zip(model.cache(tokens), model.cache(tokens, part=7), strict=True):
        torch.testing.assert_close(whole, parts)


def test_too_short_a_haystack_is_refused() -> None:
    with pytest.raises(ValueError, match="length"):
        retriever.haystacks(1, 64, 10, 3, torch.Generator())
