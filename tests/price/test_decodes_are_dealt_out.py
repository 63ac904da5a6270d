"""Decodes' keys are dealt out to multiprocessors in pieces; the table tells how much idle to expect of a batch's sums."""

from importlib.resources import files
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from calibrate.dealing import batches, shares
from calibrate.measurement import model_of
from calibrate.steps.decodes import asked_of
from sim.bill import decode_shape, iteration_bill, mixed_shape, spread
from sim.dealing import (
    BATCHES,
    BLOCK_KEYS,
    KV_HEADS,
    MOST_PARTS,
    OCTAVES,
    SATURATES,
    SHARES,
    idle_keys,
    idle_keys_of,
    idle_share,
    one_octave_on,
    share_place,
    table,
)
from sim.policy import dense, pages
from sim.precision import Precision
from sim.turns import MARGIN, MULTIPROCESSORS, query_heads
from tests.price.shapes import LATENT, QWEN_7B

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=40)


def test_nobody_idles_while_enough_of_them_read():
    assert idle_share([9] * 33, 4) == 0.0  # 132 pieces of 9
    assert idle_share([9] * 32, 4) == 0.0  # 128: enough for all of the bandwidth


def test_a_second_wave_of_a_few_pieces_takes_as_long_as_their_own_reading():
    # 136 pieces of 9: 132, then 4, which take a share SATURATES of the time in which all would read as long
    assert idle_share([9] * 34, 4) == pytest.approx(MULTIPROCESSORS * (1 + SATURATES) / (4 * 34) - 1)


def test_one_sequence_alone_is_split_among_all_as_far_as_it_may_be():
    assert idle_share([2400], 8) == 0.0
    longest = -(-2400 // MOST_PARTS)
    assert idle_share([2400], 1) == pytest.approx(longest * MULTIPROCESSORS * SATURATES / 2400 - 1)  # 32 pieces are too few


@given(lengths=LENGTHS, kv_heads=st.sampled_from([1, 2, 4, 8, 10]))
def test_the_last_piece_begins_before_an_even_share_would_be_done(lengths, kv_heads):
    total = sum(lengths) * kv_heads
    per = ceil(MARGIN * total / MULTIPROCESSORS)
    longest = max(ceil(n / max(min(ceil(n / per), MOST_PARTS), 1)) for n in lengths)
    assert 0.0 <= idle_share(lengths, kv_heads) * total <= MULTIPROCESSORS * longest * (1 + 1e-9)


@pytest.mark.parametrize("batch", [3, 12, 40])
@pytest.mark.parametrize("octave", [7, 10, 13])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_table_is_what_dealing_gives_on_average(batch, octave, share):
    found = shares(batches(batch, share, np.random.default_rng(1), 100), 4, 2.0**octave)
    said = idle_keys(4, batch, batch * 2.0**octave, (batch * share * 2.0**octave) ** 2) / (batch * 2.0**octave)
    assert said == pytest.approx(found.mean(), abs=5 * found.std() / sqrt(len(found)) + 1e-3)


def test_an_entry_of_the_table_is_made_again_from_its_seed():
    for batch, share, kv_heads, octave in ((256, 0.25, 1, 8), (512, 0.5, 2, 7), (384, 0.0, 1, 9)):
        draws = batches(batch, share, np.random.default_rng([batch, SHARES.index(share)]))
        again = shares(draws, kv_heads, 2.0**octave).mean()
        place = KV_HEADS.index(kv_heads), BATCHES.index(batch), OCTAVES.index(octave), SHARES.index(share)
        assert table()[place] == pytest.approx(again, rel=1e-3, abs=1e-6)
    assert table().shape == (len(KV_HEADS), len(BATCHES), len(OCTAVES), len(SHARES))
    assert np.isfinite(table()).all()
    assert (table() >= 0.0).all()


def test_draws_have_the_mean_and_deviation_they_stand_for():
    for apart, shift in batches(16, 0.5, np.random.default_rng(1), 20):
        assert apart.mean() == pytest.approx(1.0)
        assert apart.std() == pytest.approx(0.5, rel=1e-6)
        assert abs(shift) <= BLOCK_KEYS / 2


@given(
    batch=st.integers(2, 300),
    octave=st.integers(0, 17),
    place=st.floats(0.0, 1.0),
    share=st.floats(0.0, 2.0),
    kv=st.sampled_from([1, 4, 8, 40]),
)
def test_idle_is_linear_in_the_context_within_an_octave_where_deviation_stays(batch, octave, place, share, kv):
    low = batch * 2.0**octave
    apart = (share * low) ** 2
    middle = idle_keys(kv, batch, low * (1 + place), apart)
    almost = idle_keys(kv, batch, low * (2 - 1e-9), apart)
    start = idle_keys(kv, batch, low, apart)
    assert middle == pytest.approx(start + (almost - start) * place / (1 - 1e-9), rel=1e-6, abs=1e-6 * low)
    assert idle_keys(kv, batch, 2 * low, apart) == pytest.approx(almost, rel=1e-6, abs=1e-6 * low)


@given(share=st.floats(1e-6, 10.0))
def test_an_octave_on_the_same_deviation_is_half_the_share(share):
    def at(place, within):
        return SHARES[place] + within * (SHARES[place + 1] - SHARES[place])

    assert at(*share_place(share)) == pytest.approx(min(share, SHARES[-1]))
    if share <= SHARES[-1]:
        assert at(*one_octave_on(*share_place(share))) == pytest.approx(share / 2)


def test_arrays_are_what_their_numbers_are():
    batch, context = np.array([[1.0], [24.0], [300.0]]), np.array([1.0, 700.0, 1e5])
    found = idle_keys_of(8, batch, batch * context, 0.0)
    assert found.shape == (3, 3)
    assert found.tolist() == [[idle_keys(8, b, b * c, 0.0) for c in context] for b in batch[:, 0]]


def test_unequal_contexts_idle_more_than_equal_ones():
    for kv_heads in (4, 8):
        for mean in (700, 2048):
            equal, unequal = (idle_keys(kv_heads, 48, 48.0 * mean, (48 * mean * share) ** 2) for share in (0.0, 0.6))
            assert unequal > equal


def test_the_bill_counts_idle_of_dense_decodes_in_hbm():
    contexts = [300.0, 900.0, 2000.0, 700.0]
    bill = iteration_bill(QWEN_7B, mixed_shape(QWEN_7B, contexts, []), Precision())
    assert bill.idle_kv_bytes == pytest.approx(idle_keys(4, 4, sum(contexts), spread(contexts)) * 57344)
    half = iteration_bill(QWEN_7B, mixed_shape(QWEN_7B, contexts, [], tp=2), Precision(), tp=2)
    assert half.idle_kv_bytes == pytest.approx(idle_keys(2, 4, sum(contexts), spread(contexts)) * 57344 / 2)
    for policy in (pages(8), dense("host")):
        assert iteration_bill(QWEN_7B, decode_shape(QWEN_7B, 4.0, 1000.0, policy), Precision(), policy).idle_kv_bytes == 0.0
    assert iteration_bill(LATENT, decode_shape(LATENT, 4.0, 1000.0), Precision()).idle_kv_bytes == 0.0


def test_profiles_of_the_kernel_lie_within_a_tenth_of_blocks_and_idle():
    measured, read, idle = [], [], []
    root = Path(str(files("scenarios") / "data" / "measured" / "h100"))
    for path in sorted(root.glob("profile_*.nc")):
        with xr.open_dataset(path, engine="h5netcdf") as data:
            model, asked = model_of(data.attrs, path), asked_of(path, data.attrs | {"seed": "0"})
            kv_heads = query_heads(model)[0]
            ours = np.char.find(data["kernel_name"].values.astype(str), "enable_sm90_or_later") >= 0
            for i in np.flatnonzero((data["decode_seqs"].values > 1) & (data["chunks"].values == 0)):
                seqs = int(data["decode_seqs"].values[i])
                mean = float(data["decode_context_tokens"].values[i]) / seqs - 1
                known = asked.get(str(data["label"].values[i]), [mean] * seqs)
                contexts = [context + mean - np.mean(known) for context in known]
                measured.append(float(data["us"].values[i, ours].sum()) / model.kv_layers)
                blocks = [-(-(c + 1) // BLOCK_KEYS) for c in contexts]
                read.append(sum(blocks) * kv_heads / MULTIPROCESSORS)
                idle.append(read[-1] * idle_share([int(n) for n in blocks], kv_heads))
    assert len(measured) > 180
    time = np.array(measured)
    off = np.log((8.35 + 2.82 * (np.array(read) + 0.69 * np.array(idle))) / time)  # microseconds, by least squares
    assert np.sqrt(np.mean(off**2)) < 0.032
    assert np.abs(off).max() < 0.1
    without = np.log((8.64 + 2.865 * np.array(read)) / time)
    assert np.sqrt(np.mean(without**2)) > 0.055
