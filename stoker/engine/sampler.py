"""From logits to the next token, for a whole batch.

Order: logit_bias, repetition penalty (over prompt and generated tokens), presence and frequency penalties (over
generated tokens), stop ids forbidden until min_tokens, temperature, top_k, top_p, min_p; each of the last three looks
at what the ones before it left. Logprobs are those of the raw logits, before all of this.

Randomness is counter-based: u = H(seed, position of the output token), then the inverse of the row's own cumulative
distribution in order of token id. Nothing is carried from step to step and nothing comes from other rows, so the same
logits and seed give the same token whatever the batch, and a preempted sequence goes on as if nothing had happened.
Ties are kept in order of token id. Sums run in float64, so rounding differs too little to be met.

Only rows that ask for something pay for it: a batch of plain greedy rows is one argmax.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import torch

from stoker.types.sampling import SamplingParams
from stoker.types.wire import SampledToken

_TOP = 512  # largest values looked at before a full sort: enough for nearly every top_p in practice
_RUN = 256  # token ids per partial sum of the cumulative distribution
_COLDEST = 1e-30  # temperatures below it are 0 in float32; the result is the same long before


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
def sample(logits: torch.Tensor, rows: Sequence[SamplerRow]) -> list[SampledToken | str]:
    """Choose one token per row. logits [N, V] float32, on any device; not changed. Does not `append` to the rows.

    A row whose logits are not finite, or of whose tokens none may be chosen, gets a sentence instead of a token; the
    others are not affected.
    """
    if not rows:
        return []
    edited = [i for i, row in enumerate(rows) if row.edited]
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    scored = logits
    if edited:
        scored = logits.clone()
        scored[edited] = _edit(logits[edited], [rows[i] for i in edited])
    peak, chosen = scored.max(dim=-1)
    # A sum is finite only if all its terms are: float32 holds the sum of any sane vocabulary of logits.
    sane = torch.isfinite(logits.sum(dim=-1)).tolist()
    possible = torch.isfinite(peak).tolist()
    ids: list[int] = chosen.tolist()
    drawn = [i for i in drawn if sane[i] and possible[i]]
    if drawn:
        for i, token in zip(drawn, _draw(scored[drawn], [rows[i] for i in drawn]), strict=True):
            ids[i] = token
    out: list[SampledToken | str] = []
    for i, token in enumerate(ids):
        if not sane[i]:
            out.append("the model's logits are not finite")
        elif not possible[i]:
            out.append("bias, penalties and min_tokens leave no token to choose")
        else:
            out.append(SampledToken(token))
    wanting = [i for i, row in enumerate(rows) if row.params.logprobs is not None and isinstance(out[i], SampledToken)]
    if wanting:
        scores = _logprobs(logits[wanting], [ids[i] for i in wanting], [rows[i].params.logprobs or 0 for i in wanting])
        for i, token in zip(wanting, scores, strict=True):
            out[i] = token
    return out


def _edit(logits: torch.Tensor, rows: Sequence[SamplerRow]) -> torch.Tensor:
    """Bias, penalties and forbidden ids on logits [R, V], which may be changed. Work is in the ids named, not in V."""
    vocab = logits.shape[1]

    def cells(named: Callable[[SamplerRow], Iterable[tuple[int, float]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """(flat indices into logits, values) of all (id, value) that `named` gives for the rows."""
        found = [(r * vocab + i, value) for r, row in enumerate(rows) for i, value in named(row) if 0 <= i < vocab]
        flat = torch.tensor([at for at, _ in found], dtype=torch.int64, device=logits.device)
        return flat, torch.tensor([value for _, value in found], dtype=logits.dtype, device=logits.device)

    def penalties(row: SamplerRow) -> Iterable[tuple[int, float]]:
        presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
        return ((i, -presence - frequency * count) for i, count in row.counts.items())

    flat = logits.view(-1)
    flat.index_add_(0, *cells(lambda row: row.params.logit_bias.items()))
    if any(row.repeated for row in rows):
        seen = [row.seen[row.seen < vocab] for row in rows]
        at = torch.cat([ids + r * vocab for r, ids in enumerate(seen)]).to(logits.device)
        lengths = torch.tensor([len(ids) for ids in seen])
        factor = _column([row.params.repetition_penalty for row in rows], lengths)[:, 0].repeat_interleave(lengths)
        factor = factor.to(logits.device, logits.dtype)
        value = flat[at]
        flat[at] = torch.where(value > 0, value / factor, value * factor)
    flat.index_add_(0, *cells(penalties))
    flat.index_add_(0, *cells(lambda row: ((i, -math.inf) for i in row.forbidden)))
    return logits


def _draw(scored: torch.Tensor, rows: Sequence[SamplerRow]) -> list[int]:
    """One token per row of edited logits [R, V], by temperature, top_k, top_p and min_p. Changes `scored`."""
    params = [row.params for row in rows]
    # The largest becomes 0 before the division, so no temperature above 0 can overflow.
    scored -= scored.amax(dim=-1, keepdim=True)
    scored /= _column([max(p.temperature, _COLDEST) for p in params], scored).to(scored.dtype)
    weights = scored.exp()
    cut = [r for r, p in enumerate(params) if p.top_k > 0 or p.top_p < 1 or p.min_p > 0]
    if cut:
        kept = [params[r] for r in cut]
        weights[cut] = _truncate(weights[cut], kept)
    uniform = torch.tensor([row.uniform() for row in rows], dtype=torch.float64, device=scored.device)
    return _invert(weights, uniform).tolist()


def _truncate(weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Zero all but the best tokens of weights [R, V], whose largest is 1. Each of the three filters says how many of
    the best may stay, so it is enough to know the largest values and to keep the smallest number."""
    vocab = weights.shape[1]
    best = weights.topk(min(vocab, _TOP)).values
    keep = _kept(best, weights, params)
    threshold = best.gather(1, keep.clamp(max=best.shape[1]) - 1)
    unsure = [r for r, n in enumerate(keep[:, 0].tolist()) if n >= best.shape[1] or params[r].top_k > best.shape[1]]
    if unsure and best.shape[1] < vocab:
        best = weights[unsure].sort(descending=True).values
        keep[unsure] = _kept(best, weights[unsure], [params[r] for r in unsure])
        threshold[unsure] = best.gather(1, keep[unsure] - 1)
    above, tied = weights > threshold, weights == threshold
    # Of the tokens that tie at the threshold the lowest ids stay.
    stays = above | (tied & (tied.cumsum(dim=-1) <= keep - above.sum(dim=-1, keepdim=True)))
    return weights * stays


def _kept(best: torch.Tensor, weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """How many of the best tokens stay, [R, 1] int64. `best` [R, K] are the largest of weights [R, V] in falling order;
    a result of K or more means that K values were too few to tell."""
    seen, vocab = best.shape[1], weights.shape[1]
    top_k = _column([min(p.top_k, vocab) or vocab for p in params], best).long()
    top_p = _column([p.top_p for p in params], best)
    min_p = _column([p.min_p for p in params], best)
    sums = best.cumsum(dim=-1, dtype=torch.float64)
    total = weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    mass = torch.where(top_k <= seen, sums.gather(1, top_k.clamp(max=seen) - 1), total)
    # The token that reaches top_p stays, so one stays while those before it weigh less.
    by_p = (sums - best < top_p * mass).sum(dim=-1, keepdim=True)
    by_min = (best >= min_p).sum(dim=-1, keepdim=True)
    keep = torch.minimum(top_k, torch.where(top_p < 1, by_p, vocab))
    return torch.minimum(keep, torch.where(min_p > 0, by_min, vocab)).clamp(min=1)


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The token [R] at which the running sum of weights [R, V], in order of id, passes uniform [R] x its total. Sums
    of runs first, then within the one run that counts: V additions, but few of them one after another."""
    runs = torch.nn.functional.pad(weights, (0, -weights.shape[1] % _RUN)).unflatten(1, (-1, _RUN))
    sums = runs.sum(dim=-1, dtype=torch.float64)
    ends = sums.cumsum(dim=-1)
    run, rest = _passes(ends, uniform.unsqueeze(1) * ends[:, -1:])
    inside = runs[torch.arange(len(runs), device=runs.device), run[:, 0]].cumsum(dim=-1, dtype=torch.float64)
    token, _ = _passes(inside, rest)
    return (run * _RUN + token)[:, 0]


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
    scores = logits.log_softmax(dim=-1)
    chosen: list[float] = scores.gather(1, _column(ids, scores).long())[:, 0].tolist()
    values, indices = scores.topk(min(max(counts), scores.shape[1]))
    out: list[SampledToken] = []
    for token, logprob, n, ranked, at in zip(ids, chosen, counts, values.tolist(), indices.tolist(), strict=True):
        out.append(SampledToken(token, logprob, list(zip(at[:n], ranked[:n], strict=True))))
    return out


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """[R, 1] with one value per row, on the device of `like`. float64 holds every token id and parameter exactly."""
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
