"""The share of a first read that a further one takes comes out as it was put in."""

import pytest

from studies.shared_kv import shares


@pytest.mark.parametrize("share", [0.2, 0.4, 1.0])
def test_the_share_comes_out(share):
    def us(sequences, tokens):
        return 9.0 + 0.2 * sequences + 1.3e-3 * tokens

    rows = [
        {
            "sequences": n,
            "shared_tokens": shared,
            "own_tokens": 512.0,
            "shared_us": us(n, n * 512.0 + shared * (1.0 + share * (n - 1.0))),
            "private_us": us(n, n * (512.0 + shared)),
        }
        for n in (4.0, 16.0, 64.0)
        for shared in (2048.0, 16384.0)
    ]
    assert shares(rows) == pytest.approx(share, rel=1e-9)
