"""Places of an iteration's shares."""

from __future__ import annotations

from sim.engine.rows.layout import Core, EngineRow, IterationRow


def share_at(s: EngineRow, i: int) -> int:
    """Where the shares of iteration `i` begin."""
    return s.first_share + i * (s.seqs + 1)


def plain_share(e: Core, place: int, r: int) -> None:
    """A share of one token that a request decodes."""
    share = e.shares[place]
    share.plain = share.request = r
    share.tokens = share.samples = 1
    share.drafts = share.blind = share.admitted = share.in_prefill = 0


def insert_plain(e: Core, s: EngineRow, it: IterationRow, i: int, place: int) -> None:
    """Iteration `i` decodes a token of the running request at a place: its share stands where those of the ones before it end."""
    begin = share_at(s, i)
    end = begin + it.shares
    seat = begin
    for before in range(place):
        while seat < end and e.requests[e.shares[seat].request].cancelled:
            seat += 1
        if seat < end and e.shares[seat].request == e.running[s.first_running + before]:
            seat += 1
    for other in range(end, seat, -1):
        to, share = e.shares[other], e.shares[other - 1]
        to.plain, to.request, to.tokens, to.samples = share.plain, share.request, share.tokens, share.samples
        to.drafts, to.blind, to.admitted, to.in_prefill = share.drafts, share.blind, share.admitted, share.in_prefill
    it.shares += 1
    plain_share(e, seat, e.running[s.first_running + place])
