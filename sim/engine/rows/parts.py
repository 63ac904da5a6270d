"""The heaviest part of an iteration in pipeline stages or data-parallel ranks: the pieces that its price needs.

Decodes are shared out evenly. Prompts' chunks go to the part with the fewest tokens, the longest first; with stages they are cut where they
are longer than the token budget of a part. All parts are under way together, so an iteration takes what its heaviest part takes: ranks wait
for one another, and of pp micro-batches in pp stages each needs all stages in turn.
"""

from __future__ import annotations

from sim.engine.rows.layout import Core, EngineRow, IterationRow


def sort_pieces(e: Core, s: EngineRow, it: IterationRow, i: int) -> int:
    """List the chunks of an iteration, the longest first, cut to the budget of a part. Returns how many there are."""
    count = 0
    begin = s.first_share + i * (s.seqs + 1)
    for place in range(begin, begin + it.shares):
        share = e.shares[place]
        row = e.requests[share.request]
        n, end = share.tokens, row.computed
        beyond = end - row.prompt - row.generated
        if n == 1 and beyond <= 0 and end - n >= row.prompt:
            continue
        while n > s.part_tokens > 0:
            put_piece(e, s, count, s.part_tokens, end - n + s.part_tokens, 0)
            count += 1
            n -= s.part_tokens
        put_piece(e, s, count, n, end, max(beyond + 1, 0))
        count += 1
    return count


def put_piece(e: Core, s: EngineRow, count: int, tokens: int, end: int, rows: int) -> None:
    """Add a piece to so many."""
    place = s.first_piece + count
    while place > s.first_piece and comes_later(e, place - 1, tokens, end, rows):
        above, here = e.pieces[place - 1], e.pieces[place]
        here.tokens, here.end, here.rows = above.tokens, above.end, above.rows
        place -= 1
    piece = e.pieces[place]
    piece.tokens, piece.end, piece.rows, piece.decodes = tokens, end, rows, 0


def comes_later(e: Core, place: int, tokens: int, end: int, rows: int) -> bool:
    """Whether a piece comes behind one of so many tokens, end and rows of logits."""
    other = e.pieces[place]
    if other.tokens != tokens:
        return other.tokens < tokens
    if other.end != end:
        return other.end < end
    return other.rows < rows


def deal(e: Core, s: EngineRow, count: int, batch: int) -> int:
    """Give so many pieces to the parts, beside their decodes. Returns the part with the most tokens, the last of these."""
    for part in range(s.parts):
        e.pieces[s.first_piece + part].load = decodes_of_part(s, batch, part)
    for place in range(s.first_piece, s.first_piece + count):
        lightest = 0
        for part in range(1, s.parts):
            if e.pieces[s.first_piece + part].load < e.pieces[s.first_piece + lightest].load:
                lightest = part
        e.pieces[place].part = lightest
        e.pieces[s.first_piece + lightest].load += e.pieces[place].tokens
    heaviest = 0
    for part in range(1, s.parts):
        if e.pieces[s.first_piece + part].load >= e.pieces[s.first_piece + heaviest].load:
            heaviest = part
    return heaviest


def decodes_of_part(s: EngineRow, batch: int, part: int) -> int:
    """Decodes of a part, of `batch` in all."""
    most = -(-batch // s.parts)
    return most if part < batch - (most - 1) * s.parts else max(most - 1, 0)
