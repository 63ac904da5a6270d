"""vLLM's V1 scheduler over rows: one token budget per iteration, running requests first, then waiting ones.

There is no prefill or decode phase: every request has known tokens (prompt and generated) and computed tokens, and an iteration lets the
second catch up with the first. With asynchronous scheduling (`overlap`) an iteration is decided while the one before it runs: what that
computes and samples for a request counts as done (`under_way`, `coming`), and a finished request keeps its place through one more decision.
Decisions equal those of vLLM 0.33 and, by version, 0.32 (tests/engine/test_decisions_equal_vllm.py).
"""

from __future__ import annotations

from sim.engine.interface import BLOCKS, BUDGET, SLOTS
from sim.engine.rows.drafts import accepted
from sim.engine.rows.kv import allocate, blocks_of, find_hits, give_back, remember, sit
from sim.engine.rows.layout import NOBODY, OUTSIDE, RUNNING, Core, EngineRow, IterationRow
from sim.engine.rows.log import note_chunk, note_loss
from sim.engine.rows.offload import chunks_to_offer, finish_offers, host_hits, load, offer, unpin_hits
from sim.engine.rows.sending import note_token
from sim.engine.rows.shares import plain_share, share_at
from sim.engine.rows.steady import settle, steady_before, steady_shares, unsettle_all
from sim.engine.rows.waiting import next_waiting, pass_over, put_back, take_out


def decide(e: Core, s: EngineRow, i: int) -> None:
    """Decide iteration `i` (0 or 1, whichever is not under way): running requests in order, then admissions unless somebody left."""
    it = e.iterations[s.first_iteration + i]
    it.shares = it.tokens = it.admitted = it.preempted = it.lacks = it.reads_prompt = it.decodes = it.context = 0
    it.steady = it.steady_context = 0
    it.uniform = int(s.drafting > 0)
    s.decisions += 1
    if s.interval > 1:
        hold_prefill(e, s)
    if s.steady:
        steady_shares(e, s, it)
    it.epoch = s.epoch
    budget = running_shares(e, s, it, i, s.budget - s.drafter_rows - it.steady)
    started = it.shares
    if it.preempted:
        it.lacks = BLOCKS
    else:
        it.lacks = admit(e, s, it, i, budget)
    if s.interval > 1:
        keep_interval(e, s, it, i, started)
    it.shared, it.common = s.shared, s.common
    if gives_later(s):
        begin = share_at(s, i)
        for place in range(begin, begin + it.shares):
            give_share(e, s, it, place)
    if s.host_chunks:
        begin = share_at(s, i)
        for place in range(begin, begin + it.shares):
            r = e.shares[place].request
            if (e.requests[r].offered + 1) * s.chunk_tokens <= e.requests[r].prompt:
                offer(e, s, r, chunks_to_offer(e, s, r))
        finish_offers(e, s)


def gives_later(s: EngineRow) -> bool:
    """Whether shares are given when all are decided: one may be withdrawn before, or is looked at as it was."""
    return s.ranked > 0 or s.interval > 1


def give_share(e: Core, s: EngineRow, it: IterationRow, place: int) -> None:
    """The iteration computes a share: its tokens are under way, and with them the samples that they lead to."""
    share = e.shares[place]
    row = e.requests[share.request]
    tokens = share.tokens
    if tokens == 1 and row.computed >= row.prompt:
        it.decodes += 1
        it.context += row.computed
    elif tokens > 1 and (not row.generated or row.computed - row.under_way + tokens <= row.prompt + row.generated):
        it.reads_prompt = 1
    share.in_prefill = row.in_prefill
    it.tokens += tokens
    row.computed += tokens
    row.under_way += tokens
    drafts = row.computed - row.prompt - row.generated - row.coming
    share.samples = share.drafts = 0
    if drafts >= 0:
        share.samples, share.drafts = 1, drafts
        row.in_prefill = 0
        if row.fills == 1:
            row.fills = -s.decisions
        row.coming += 1 + drafts
        if s.overlap:
            row.drafts = s.drafting  # the worker has them by the next decision


def running_shares(e: Core, s: EngineRow, it: IterationRow, i: int, budget: int) -> int:
    """Give each running request its tokens, preempting while KV blocks are short. Returns the budget left."""
    threshold, quick = threshold_of(s), not s.drafting and not gives_later(s)
    decodes = context = 0
    begin = share_at(s, i)
    while s.settled < s.running and e.requests[e.running[s.first_running + s.settled]].final:
        s.settled += 1
    index = s.settled
    while index < s.running and budget > 0:
        r = e.running[s.first_running + index]
        row = e.requests[r]
        if row.final:
            index += 1
            continue
        start = row.computed
        wanted = row.prompt + row.generated + row.coming - start
        if quick and wanted == 1 and start >= row.prompt and start < row.held * s.block:
            # a decode with room in its last block, of all rules the one that most shares take
            if row.coming and start + 2 - row.coming >= row.prompt + row.output:
                index += 1
                continue
            findable = min(start + 1, row.prompt + row.generated)
            if s.caching and findable >= (row.hashed + 1) * s.block:
                remember(e, s, r, findable)
            if e.shares[begin + it.shares].plain != r:
                plain_share(e, begin + it.shares, r)
            row.computed = start + 1
            row.under_way += 1
            row.coming += 1
            it.shares += 1
            decodes += 1
            context += start
            budget -= 1
            index += 1
            if s.settles:
                settle(e, s, r)
            continue
        if row.coming and start + 2 - row.coming >= row.prompt + row.output:
            wanted = 0  # its last token is on the way
        if not wanted or (s.holds and row.prefilling):
            index += 1
            continue
        if s.drafting:
            wanted = min(wanted + row.drafts, s.max_len - start - 1)
            if wanted <= 0:
                index += 1
                continue
        tokens = wanted
        if wanted > 1:
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget)
        room = start + tokens
        if s.lookahead:
            room = min(room + s.lookahead, s.max_len)
        if room > row.held * s.block:
            needed, stays = blocks_of(s, room) - row.held, 1
            while stays and needed > s.free:
                place = victim(e, s)
                left = e.running[s.first_running + place]
                if place < index:
                    index -= 1
                budget += withdraw(e, s, it, i, left)
                preempt(e, s, it, place)
                stays = int(left != r)
            if not stays:
                if s.goes_on and s.ranked:
                    continue  # those behind it may still fit
                break
            allocate(e, s, r, needed)
        it.uniform = int(it.uniform and row.drafts > 0)
        row.drafts = 0
        findable = min(start + tokens, row.prompt + row.generated - s.unnamed)
        if s.caching and findable >= (row.hashed + 1) * s.block:
            remember(e, s, r, findable)
        take_share(e, s, it, i, r, tokens)
        budget -= tokens + s.drafter_rows
        index += 1
    it.tokens += decodes
    it.decodes += decodes
    it.context += context
    return budget


def threshold_of(s: EngineRow) -> int:
    """Tokens beyond which a long prompt is held back; only for the sake of others."""
    return s.threshold if s.queued + s.running > 1 else 0


def take_share(e: Core, s: EngineRow, it: IterationRow, i: int, r: int, tokens: int) -> None:
    """The iteration computes tokens of a request."""
    place = share_at(s, i) + it.shares
    share = e.shares[place]
    share.plain, share.request, share.tokens, share.blind, share.admitted = NOBODY, r, tokens, 0, 0
    it.shares += 1
    if not gives_later(s):
        give_share(e, s, it, place)


def withdraw(e: Core, s: EngineRow, it: IterationRow, i: int, r: int) -> int:
    """A request that leaves may have its share of this iteration already. Returns what that gives back to the budget."""
    begin, back, kept = share_at(s, i), 0, 0
    if not s.ranked:
        return 0  # the last to come leaves first
    for place in range(begin, begin + it.shares):
        share = e.shares[place]
        if share.request == r:
            back = share.tokens + s.drafter_rows
        else:
            to = e.shares[begin + kept]
            to.request, to.tokens, to.blind, to.admitted = share.request, share.tokens, share.blind, share.admitted
            kept += 1
    it.shares = kept
    return back


def victim(e: Core, s: EngineRow) -> int:
    """Place among the running of the one that leaves next: the last, or the latest to come of those with the highest priority number."""
    if not s.ranked:
        return s.running - 1
    found = 0
    for place in range(1, s.running):
        one, other = e.requests[e.running[s.first_running + place]], e.requests[e.running[s.first_running + found]]
        if one.priority > other.priority or (one.priority == other.priority and one.arrival_s > other.arrival_s):
            found = place
    return found


def preempt(e: Core, s: EngineRow, it: IterationRow, place: int) -> None:
    """Drop a running request's KV and drafts; it will compute prompt and generated tokens again, less what is still cached. What is still
    being computed for it is delivered, and only then may it come back.
    """
    r = e.running[s.first_running + place]
    row = e.requests[r]
    for other in range(place, s.running - 1):
        e.running[s.first_running + other] = e.running[s.first_running + other + 1]
    s.running -= 1
    row.stale += row.under_way
    row.under_way = row.coming = row.computed = row.drafts = row.prefilling = row.in_prefill = row.comes_with = row.fills = 0
    row.preemptions += 1
    give_back(e, s, r)
    it.preempted += 1
    if s.keep:
        note_loss(e, s, r)
    put_back(e, s, r)


def admit(e: Core, s: EngineRow, it: IterationRow, i: int, budget: int) -> int:
    """Start waiting requests, in queue order and stopping at the first that does not fit. Returns what that one lacks."""
    threshold, began = threshold_of(s), it.shares > 0
    while budget > 0 and s.running < s.seqs:
        r = next_waiting(e, s)
        if r == NOBODY:
            break
        row = e.requests[r]
        if s.adapters and row.adapter and one_adapter_too_many(e, s, it, i, row.adapter):
            pass_over(e, s, r)
            continue
        known = row.prompt + row.generated
        if row.loading:
            hits, start, s.idle_hits = row.held, row.computed, 0
            remember(e, s, r, row.held * s.block)
        else:
            hits = find_hits(e, s, r)
            start = max(hits * s.block, min(row.comes_with, known - 1))  # transferred KV: the last token is computed anew
            if s.host_chunks and not row.comes_with:
                row.offered = 0
                below = NOBODY if row.writing else host_hits(e, s, r, hits)
                if below < 0:
                    pass_over(e, s, r)
                    continue
                if below:
                    if not load(e, s, r, hits, below):
                        return BLOCKS
                    continue
        remaining = known - start
        if remaining > 1 and s.holds:
            return BUDGET
        padded = remaining == 1 and it.uniform and (began or start > 0) and start + s.drafting + 2 <= s.max_len
        if padded:
            remaining += s.drafting
            if remaining > budget:
                return BUDGET
        tokens = threshold if 0 < threshold < remaining else remaining
        if tokens > budget and not s.chunked:
            return BUDGET
        tokens = min(tokens, budget)
        upto = start + tokens
        slots = min(upto + s.lookahead, s.max_len)
        needed = blocks_of(s, max(known if s.reserve else upto, slots)) - hits
        if max(needed, 0) + s.idle_hits > s.free - (s.watermark if s.running else 0):
            return BLOCKS
        take_out(e, s, r)
        row.state = RUNNING
        e.running[s.first_running + s.running] = r
        s.running += 1
        if not row.loading:
            sit(e, s, r, hits)
        allocate(e, s, r, blocks_of(s, slots) - hits)
        remember(e, s, r, min(upto, known - s.unnamed))
        if not row.preemptions and not row.comes_with and not row.loading:
            row.cached = hits * s.block
        if row.scheduled == NOBODY:
            row.scheduled = s.now
        loaded = row.loading
        row.computed, row.comes_with, row.in_prefill, row.loading = start, 0, 1, 0
        take_share(e, s, it, i, r, tokens)
        if not loaded:
            row.fills = int(upto < known)
        share = e.shares[share_at(s, i) + it.shares - 1]
        share.blind, share.admitted = int(padded), 1
        it.admitted += 1
        budget -= tokens + s.drafter_rows
    if not s.queued:
        return 0
    return SLOTS if s.running >= s.seqs else BUDGET if budget <= 0 else 0


def one_adapter_too_many(e: Core, s: EngineRow, it: IterationRow, i: int, adapter: int) -> bool:
    """Whether an adapter is none of those that requests of the batch ask for, and these are as many as there may be. Counted are all
    running requests or, by version, those that the iteration computes.
    """
    begin, distinct = share_at(s, i), 0
    count = s.running if s.counts_running else it.shares
    for place in range(count):
        own = e.requests[adapter_holder(e, s, begin, place)].adapter
        if own == adapter:
            return False
        before = 0
        while before < place and e.requests[adapter_holder(e, s, begin, before)].adapter != own:
            before += 1
        distinct += int(own > 0 and before == place)
    return distinct >= s.adapters


def adapter_holder(e: Core, s: EngineRow, begin: int, place: int) -> int:
    """The running request at a place, or that of a share."""
    if s.counts_running:
        return e.running[s.first_running + place]
    return e.shares[begin + place].request


def collect(e: Core, s: EngineRow, i: int) -> int:
    """The tokens of iteration `i` are sent now: advance requests, keep what is accepted, free the finished. Returns how many got one."""
    it, begin, gone, place = e.iterations[s.first_iteration + i], share_at(s, i), 0, 0
    remembers = s.caching and (s.overlap or (s.drafting and s.remembers_samples))
    for seat in range(begin, begin + it.shares):
        share = e.shares[seat]
        r = share.request
        row = e.requests[r]
        if share.plain >= 0 and not row.stale and not row.cancelled and row.generated + 1 < row.output and not s.keep:
            row.generated += 1
            row.under_way -= 1
            row.coming -= 1
            done = row.computed - row.under_way
            if remembers and done >= (row.hashed + 1) * s.block:
                remember(e, s, r, done)
            place += 1
            continue
        if row.cancelled:
            row.generated += share.samples
            row.computed -= share.drafts
            row.under_way -= share.tokens
            continue
        if row.generated >= row.output:
            continue  # accepted drafts were its last tokens: this one is nobody's
        stale = row.stale > 0
        if stale:
            row.stale -= share.tokens
        else:
            row.under_way -= share.tokens
        if s.keep and share.in_prefill:
            note_chunk(e, s, it, r, share.tokens, row.computed - row.under_way)
        if not share.samples:
            continue
        row.generated += 1
        kept = 0
        if share.drafts and not share.blind:
            kept = min(accepted(e, s, r, share.drafts), row.output - row.generated)
            row.generated += kept
        if not stale:
            row.computed -= share.drafts - kept
            row.coming -= 1 + share.drafts
            if remembers:
                done = row.computed - row.under_way
                if done >= (row.hashed + 1) * s.block:
                    remember(e, s, r, done)
        if s.keep or row.generated == 1 + kept or row.generated >= row.output:
            note_token(e, s, it, r, 1 + kept, place + steady_before(e, s, it, r) if it.steady else place)
        place += 1
        if row.generated >= row.output:
            if stale:
                take_out(e, s, r)
                row.stale = 0
            else:
                row.under_way = row.coming = row.drafts = row.prefilling = 0
                give_back(e, s, r)
                row.state = OUTSIDE
                gone += 1
            if s.host_chunks:
                note_gone(e, s, r)
        elif s.drafting and not s.overlap:
            row.drafts = s.drafting
    if gone:
        drop_finished(e, s)
    s.sent_epoch = it.epoch
    return place + it.steady


def note_gone(e: Core, s: EngineRow, r: int) -> None:
    """A request has finished: host RAM hears of it with the next decision."""
    e.requests[r].behind = NOBODY
    if s.gone == NOBODY:
        s.gone = r
    else:
        e.requests[s.last_gone].behind = r
    s.last_gone = r


def drop_finished(e: Core, s: EngineRow) -> None:
    """Those who have no seat run no more."""
    kept = 0
    for place in range(s.running):
        r = e.running[s.first_running + place]
        if e.requests[r].seat != NOBODY:
            e.running[s.first_running + kept] = r
            kept += 1
    s.running = kept


def cancel(e: Core, s: EngineRow, r: int) -> None:
    """Forget a request whose client has given up, and free its blocks: an iteration under way still writes them, before any other."""
    if s.steady:
        unsettle_all(e, s)
    row = e.requests[r]
    row.cancelled = 1
    if row.state == RUNNING:
        give_back(e, s, r)
        row.state = OUTSIDE
        drop_finished(e, s)
    elif row.state != OUTSIDE:
        take_out(e, s, r)
        if row.loading > 1:
            unpin_hits(e, s, r, row.hashed, row.from_host)
        if row.loading:
            give_back(e, s, r)
            row.loading = 0
    if s.host_chunks:
        note_gone(e, s, r)
    row.coming = row.stale = row.drafts = row.prefilling = row.in_prefill = 0


# prefill interval: prompts wait for some iterations, so that decodes run in longer stretches


def hold_prefill(e: Core, s: EngineRow) -> None:
    """A decision begins: whether it lets no prefill in."""
    decodes = False
    for place in range(s.running):
        decodes = decodes or not e.requests[e.running[s.first_running + place]].prefilling
    s.holds = int(not s.backed_up and s.executed + 1 - s.latest_prefill < s.interval and decodes)


def keep_interval(e: Core, s: EngineRow, it: IterationRow, i: int, started: int) -> None:
    """Note what a decision, whose shares from `started` on are admissions, means for how long prefill is held back."""
    begin, prefills = share_at(s, i), False
    for place in range(begin, begin + started):
        prefills = prefills or e.requests[e.shares[place].request].prefilling > 0
    for place in range(begin, begin + it.shares):
        share = e.shares[place]
        row = e.requests[share.request]
        wanted = row.prompt + row.generated + row.coming - row.computed
        if row.coming and row.computed + 2 - row.coming >= row.prompt + row.output:
            wanted = 0
        prefills = prefills or (share.admitted > 0 and wanted > 1)
        row.prefilling = int(share.tokens < wanted)
    if not it.preempted and not s.holds:
        s.backed_up = int(s.queued > s.deferred)
    s.executed += int(it.shares > 0)
    if prefills:
        s.latest_prefill = s.executed
