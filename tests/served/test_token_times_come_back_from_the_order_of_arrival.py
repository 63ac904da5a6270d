"""A served file has its tokens as they came: the times of each request come back, and other counts than its tokens are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.served.runs import token_times, with_token_times
from hw.suites.served import dataset
from sim.errors import UsageError

TIMES = st.lists(st.integers(0, 10**8), max_size=6).map(sorted)  # us since the experiment's first send, of one request
EXPERIMENTS = st.lists(st.lists(TIMES, max_size=5), min_size=1, max_size=3)


def written(experiments):
    return dataset(
        [
            {
                "row": {"void": ""},
                "requests": [{"output_tokens": len(one)} for one in requests],
                "tokens": [[1e-6 * t for t in one] for one in requests],
            }
            for requests in experiments
        ],
        {},
    )


@given(EXPERIMENTS)
def test_every_requests_times_come_back(experiments):
    requests = [one for each in experiments for one in each]
    if not requests:
        return
    data = written(experiments)
    read = with_token_times(data, "x.nc")
    found = token_times(read, np.arange(len(requests)))
    assert [np.round(1e6 * one).astype(int).tolist() for one in found] == requests


def test_waits_of_simultaneous_streams_are_short():
    """Two streams that get a token each 10 ms, 40 us apart: the waits are those between them."""
    data = written([[[10_000, 20_000, 30_000], [10_040, 20_040]]])
    assert data["token_request"].values.tolist() == [0, 1, 0, 1, 0]
    assert data["token_wait_us"].values.tolist() == [10_000, 40, 9_960, 40, 9_960]


@pytest.mark.parametrize(
    ("request_of", "says"),
    [
        ([0, 1, 0, 1, 1], "x.nc, request 1 of the file: output_tokens says 3, token_request has 2"),
        ([0, 1, 0, 1, 2], "x.nc: token_request names requests that are not there"),
        ([0, 1, 0, -1, 0], "x.nc: token_request names requests that are not there"),
    ],
)
def test_other_counts_than_output_tokens_are_refused(request_of, says):
    data = written([[[10_000, 20_000, 30_000], [10_040, 20_040]]])
    with pytest.raises(UsageError, match=says):
        with_token_times(data.assign(token_request=("token", request_of)), "x.nc")
