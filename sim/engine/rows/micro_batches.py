"""An iteration in micro-batches, as llama.cpp computes it (n_ubatch).

Decodes come first, then the chunks in order. Where requests keep a state or a KV stream each, every request of a micro-batch has the same
number of tokens: each takes requests that have tokens left, in order and n_ubatch at most, and of each as many tokens as the shortest has
left and as fit. So one decode beside prompts makes a batch of one token of everybody. With streams it holds slots with consecutive numbers
only: streams lie one after the other, and a gap ends the batch. Elsewhere it is filled up, and a chunk is cut where it must be.
"""

from __future__ import annotations

from sim.engine.rows.layout import FILLED, NOBODY, STREAMS, Core, EngineRow, IterationRow
from sim.engine.rows.shares import share_at


def list_shares(e: Core, s: EngineRow, it: IterationRow, i: int) -> int:
    """List the shares of an iteration as pieces, decodes first. Returns how many there are."""
    count, begin = 0, share_at(s, i)
    for chunks in range(2):
        for place in range(begin, begin + it.shares):
            share = e.shares[place]
            row = e.requests[share.request]
            n, end = share.tokens, row.computed
            beyond = end - row.prompt - row.generated
            decodes = int(n == 1 and beyond <= 0 and end > row.prompt)
            if decodes == chunks:
                continue
            piece = e.pieces[s.first_piece + count]
            piece.tokens, piece.end, piece.rows, piece.part, piece.decodes = n, end, max(beyond + 1, 0), row.seat, decodes
            count += 1
    return count


def next_micro_batch(e: Core, s: EngineRow, count: int) -> int:
    """How many tokens of each of so many pieces the next micro-batch takes (`taken`). Returns their sum."""
    if s.cuts == FILLED:
        room = s.micro_batch
        for place in range(s.first_piece, s.first_piece + count):
            piece = e.pieces[place]
            piece.taken = min(piece.tokens, room)
            room -= piece.taken
        return s.micro_batch - room
    members, latest, least = 0, NOBODY, s.micro_batch
    for place in range(s.first_piece, s.first_piece + count):
        piece = e.pieces[place]
        follows = not members or s.cuts != STREAMS or piece.part == latest + 1
        piece.taken = int(piece.tokens > 0 and members < s.micro_batch and follows)
        if piece.taken:
            members, latest, least = members + 1, piece.part, min(least, piece.tokens)
    each = min(least, s.micro_batch // members)
    for place in range(s.first_piece, s.first_piece + count):
        e.pieces[place].taken *= each
    return members * each


def most_micro_batches(s: EngineRow) -> int:
    """More than an iteration can have: each ends a share, or is full by half."""
    return s.seqs + 2 * (s.budget + s.seqs) // s.micro_batch + 2
