"""From logits to the next token, for a whole batch.

Order: the grammar's mask, logit_bias, repetition penalty (over prompt and generated tokens), presence and frequency
penalties (over generated tokens), stop ids forbidden until min_tokens, temperature, top_k, top_p, min_p; each of the
last three looks at what the ones before it left. Logprobs are those of the raw logits, before all of this.

Randomness is counter-based: u = H(seed, position of the output token), then the inverse of the row's own cumulative
distribution in order of token id. Nothing is carried from step to step and nothing comes from other rows, so the same
logits and seed give the same token whatever the batch, and a preempted sequence goes on as if nothing had happened.
Ties are kept in order of token id, and sums are formed in an order that does not depend on the batch.

Only rows that ask for something pay for it: a batch of plain greedy rows is one argmax.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import torch

from stoker.types.sampling import SamplingParams
from stoker.types.wire import SampledToken

_BEST = 128  # largest logits looked at first; enough for nearly every top_k and top_p in practice
_WIDER = 32  # and so many times more where they do not suffice
_RUN = 128  # token ids per partial sum of the cumulative distribution; a power of two
_COLDEST = 1e-30  # temperatures below it are 0 in float32; the result is the same long before


class Allowed(NamedTuple):
    """Which tokens may come: for the batch's rows `rows`, words [R, W] int32 on the CPU. Token i is bit i % 32 of word
    i // 32; tokens beyond the last word may not come. The other rows are free."""

    rows: list[int]
    words: torch.Tensor


class SamplerRow:
    """What the sampler remembers of one sequence. `token_ids` are all ids known so far, `prompt_len` of them prompt.

    Ids in logit_bias or stop_ids outside the vocabulary are ignored here; the scheduler refuses such a bias.
    """

    def __init__(self, params: SamplingParams, token_ids: Sequence[int], prompt_len: int) -> None:
        self.params = params
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.generated = len(token_ids) - prompt_len
        self.counted = params.presence_penalty != 0 or params.frequency_penalty != 0
        self.repeated = params.repetition_penalty != 1
        self.counts: Counter[int] = Counter(token_ids[prompt_len:]) if self.counted else Counter()
        self._seen = set(token_ids) if self.repeated else set[int]()
        self.seen = torch.tensor(sorted(self._seen), dtype=torch.int64)

    def append(self, ids: Iterable[int]) -> None:
        """The sequence has grown by generated `ids`."""
        new = list(ids)
        self.generated += len(new)
        if self.counted:
            self.counts.update(new)
        if self.repeated and (fresh := sorted(set(new) - self._seen)):
            self._seen.update(fresh)
            self.seen = torch.cat((self.seen, torch.tensor(fresh, dtype=torch.int64)))

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Ids that must not come next."""
        return self.params.stop_ids if self.generated < self.params.min_tokens else ()

    @property
    def edited(self) -> bool:
        """Are its logits changed before the choice?"""
        return bool(self.repeated or self.params.logit_bias or self.forbidden or self.counts)

    def uniform(self) -> float:
        """The random number in [0, 1) of the token about to be chosen."""
        digest = blake2b(f"{self.seed}:{self.generated}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


@torch.inference_mode()
def sample(
    logits: torch.Tensor, rows: Sequence[SamplerRow], allowed: Allowed | None = None
) -> list[SampledToken | str]:
    """Choose one token per row. logits [N, V] float32, on any device; not changed. Does not `append` to the rows.

    A row whose logits are not finite, or of whose tokens none may be chosen, gets a sentence instead of a token; the
    others are not affected.
    """
    if not rows:
        return []
    scored = logits if allowed is None else _masked(logits, allowed)
    if any(row.edited for row in rows):
        scored = _edited(scored, rows)
    peak, best = scored.max(dim=-1)
    # A sum is finite only if all its terms are: float32 holds the sum of any sane vocabulary of logits.
    sane: list[bool] = torch.isfinite(logits.sum(dim=-1)).tolist()
    possible: list[bool] = torch.isfinite(peak).tolist()
    ids: list[int] = best.tolist()
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0 and sane[i] and possible[i]]
    if drawn:
        tokens = _draw(_pick(scored, drawn), _pick(peak, drawn), [rows[i] for i in drawn])
        for i, token in zip(drawn, tokens, strict=True):
            ids[i] = token
    out: list[SampledToken | str] = []
    for i, token in enumerate(ids):
        if not sane[i]:
            out.append("the model's logits are not finite")
        elif not possible[i]:
            out.append("grammar, bias, penalties and min_tokens leave no token to choose")
        else:
            out.append(SampledToken(token))
    wanting = [i for i, row in enumerate(rows) if row.params.logprobs is not None and isinstance(out[i], SampledToken)]
    if wanting:
        counts = [rows[i].params.logprobs or 0 for i in wanting]
        for i, token in zip(wanting, _logprobs(_pick(logits, wanting), [ids[i] for i in wanting], counts), strict=True):
            out[i] = token
    return out


def _masked(logits: torch.Tensor, allowed: Allowed) -> torch.Tensor:
    """A copy of logits [N, V] without the tokens that a grammar does not allow."""
    vocab, device = logits.shape[1], logits.device
    octets = allowed.words.view(torch.uint8).to(device, non_blocking=True).unsqueeze(2)
    barred = (octets & 2 ** torch.arange(8, dtype=torch.uint8, device=device)).eq(0).flatten(1)
    if barred.shape[1] < vocab:
        barred = torch.nn.functional.pad(barred, (0, vocab - barred.shape[1]), value=True)
    barred = barred[:, :vocab]
    if len(allowed.rows) == len(logits):
        return logits.masked_fill(barred, -math.inf)
    at = torch.tensor(allowed.rows, device=device)
    return logits.index_copy(0, at, logits.index_select(0, at).masked_fill_(barred, -math.inf))


def _edited(logits: torch.Tensor, rows: Sequence[SamplerRow]) -> torch.Tensor:
    """A copy of logits [N, V] with bias, penalties and forbidden ids. Beside the copy the work is in the ids named."""
    vocab, device, dtype = logits.shape[1], logits.device, logits.dtype
    flat = logits.flatten().clone()

    def add(named: Callable[[SamplerRow], Iterable[tuple[int, float]]]) -> None:
        """Add the (id, value) that `named` gives for each row."""
        found = [(r * vocab + i, value) for r, row in enumerate(rows) for i, value in named(row) if 0 <= i < vocab]
        if found:
            at, values = zip(*found, strict=True)
            flat.index_add_(0, torch.tensor(at, device=device), torch.tensor(values, dtype=dtype, device=device))

    def counted(row: SamplerRow) -> Iterable[tuple[int, float]]:
        presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
        return ((i, -presence - frequency * count) for i, count in row.counts.items())

    add(lambda row: row.params.logit_bias.items())
    for r, row in enumerate(rows):
        if row.repeated:
            at = (row.seen[row.seen < vocab] + r * vocab).to(device)
            value, penalty = flat[at], row.params.repetition_penalty
            flat[at] = torch.where(value > 0, value / penalty, value * penalty)
    add(counted)
    add(lambda row: ((i, -math.inf) for i in row.forbidden))
    return flat.view_as(logits)


def _draw(scored: torch.Tensor, peak: torch.Tensor, rows: Sequence[SamplerRow]) -> list[int]:
    """One token per row of edited logits [R, V], of which peak [R] are the largest."""
    params = [row.params for row in rows]
    # The largest becomes 0 before the division, so no temperature above 0 can overflow.
    scaled = scored - peak.unsqueeze(1)
    if any(p.temperature != 1 for p in params):
        scaled /= _column([max(p.temperature, _COLDEST) for p in params], scaled).to(scaled.dtype)
    uniform = torch.tensor([row.uniform() for row in rows], dtype=torch.float64, device=scored.device)
    cut = [r for r, p in enumerate(params) if p.top_k > 0 or p.top_p < 1 or p.min_p > 0]
    whole = [r for r in range(len(rows)) if r not in set(cut)]
    tokens = [0] * len(rows)
    if whole:
        for r, token in zip(whole, _invert(_pick(scaled, whole).exp(), _pick(uniform, whole)).tolist(), strict=True):
            tokens[r] = token
    if cut:
        drawn = _draw_best(_pick(scaled, cut), [params[r] for r in cut], _pick(uniform, cut), _BEST)
        for r, token in zip(cut, drawn.tolist(), strict=True):
            tokens[r] = token
    return tokens


def _draw_best(
    scaled: torch.Tensor, params: Sequence[SamplingParams], uniform: torch.Tensor, looked_at: int
) -> torch.Tensor:
    """Tokens [R] from what top_k, top_p and min_p leave of scaled logits [R, V], whose largest is 0.

    Each filter says how many of the best may stay, so the smallest number counts and the `looked_at` largest values
    tell it for most rows; the others look at more. Of tokens that tie where the cut falls the lowest ids stay.
    """
    vocab = scaled.shape[1]
    if looked_at < vocab:
        values, ids = scaled.topk(looked_at)
    else:
        values, ids = scaled.sort(descending=True, stable=True)
    weights = values.exp()
    keep = _kept(weights, scaled, params)
    ids, order = torch.where(torch.arange(weights.shape[1], device=ids.device) < keep, ids, vocab).sort()
    token = ids.gather(1, _invert(weights.gather(1, order) * (ids < vocab), uniform).unsqueeze(1))[:, 0]
    if looked_at < vocab:
        edge = values.gather(1, (keep - 1).clamp(max=looked_at - 1)) == values.gather(1, keep.clamp(max=looked_at - 1))
        unsure = [
            r
            for r, (n, tie) in enumerate(zip(keep[:, 0].tolist(), edge[:, 0].tolist(), strict=True))
            if n >= looked_at or tie or looked_at < params[r].top_k < vocab
        ]
        if unsure:
            wider = _draw_best(
                _pick(scaled, unsure), [params[r] for r in unsure], _pick(uniform, unsure), looked_at * _WIDER
            )
            token[torch.tensor(unsure, device=token.device)] = wider
    return token


def _kept(weights: torch.Tensor, scaled: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """How many of the best tokens stay, [R, 1] int64. weights [R, K] are those of the K largest of scaled [R, V], in
    falling order; a result of K or more means that K were too few to tell."""
    seen, vocab = weights.shape[1], scaled.shape[1]
    top_k = _column([min(p.top_k, vocab) or vocab for p in params], weights).long()
    top_p = _column([p.top_p for p in params], weights)
    min_p = _column([p.min_p for p in params], weights)
    keep = torch.minimum(top_k, torch.where(min_p > 0, (weights >= min_p).sum(dim=-1, keepdim=True), vocab))
    if any(p.top_p < 1 for p in params):
        sums = weights.cumsum(dim=-1, dtype=torch.float64)
        mass = sums.gather(1, top_k.clamp(max=seen) - 1)
        if any(not 0 < p.top_k <= seen for p in params):
            mass = torch.where(top_k <= seen, mass, _sums(scaled.exp()).sum(dim=-1, keepdim=True, dtype=torch.float64))
        # The token that reaches top_p stays, so one stays while those before it weigh less.
        by_p = (sums - weights < top_p * mass).sum(dim=-1, keepdim=True)
        keep = torch.minimum(keep, torch.where(top_p < 1, by_p, vocab))
    return keep.clamp(min=1)


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The place [R] at which the running sum of weights [R, K] passes uniform [R] x its total. Sums of runs first,
    then within the one run that counts."""
    ends = _sums(weights).cumsum(dim=-1, dtype=torch.float64)
    run, rest = _passes(ends, uniform.unsqueeze(1) * ends[:, -1:])
    at = run * _RUN + torch.arange(_RUN, device=run.device)
    inside = weights.gather(1, at.clamp(max=weights.shape[1] - 1)) * (at < weights.shape[1])
    place, _ = _passes(inside.cumsum(dim=-1, dtype=torch.float64), rest)
    return (run * _RUN + place)[:, 0]


def _sums(weights: torch.Tensor) -> torch.Tensor:
    """Sums [R, ceil(K / run)] of each run of weights [R, K], by halves: elementwise additions alone, whose order a
    library's reduction would choose by the shape of the batch."""
    if short := -weights.shape[1] % _RUN:
        weights = torch.nn.functional.pad(weights, (0, short))
    parts = weights.unflatten(1, (-1, _RUN))
    while parts.shape[-1] > 1:
        left, right = parts.chunk(2, dim=-1)
        parts = left + right
    return parts[..., 0]


def _passes(ends: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(first index at which ends [R, K] exceeds target [R, 1], what of the target lies behind the end before it).
    Rounding may have put the target at the total or below 0; it is moved inside, where some weight is."""
    total = ends[:, -1:]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total))).clamp(min=0)
    at = torch.searchsorted(ends, target, right=True)
    before = torch.where(at > 0, ends.gather(1, (at - 1).clamp(min=0)), 0)
    return at, target - before


def _logprobs(logits: torch.Tensor, ids: Sequence[int], counts: Sequence[int]) -> list[SampledToken]:
    """The chosen tokens with their logprob and the `counts` most likely alternatives, from raw logits [R, V]."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen: list[float] = (logits.gather(1, _column(ids, logits).long()) - total)[:, 0].tolist()
    values, best = logits.topk(min(max(counts), logits.shape[1]))
    ranked: list[list[float]] = (values - total).tolist()
    out: list[SampledToken] = []
    for token, logprob, n, scores, at in zip(ids, chosen, counts, ranked, best.tolist(), strict=True):
        out.append(SampledToken(token, logprob, list(zip(at[:n], scores[:n], strict=True))))
    return out


def _pick(values: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Those rows of `values` [N, ...]; all of them without a copy."""
    if len(rows) == len(values):
        return values
    return values.index_select(0, torch.tensor(rows, device=values.device))


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """[R, 1] with one value per row, on the device of `like`. float64 holds every token id and parameter exactly."""
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
