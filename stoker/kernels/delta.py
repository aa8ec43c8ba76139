"""The gated delta rule: a memory of fixed size per head, which forgets by channel and corrects what a key recalls.

    S_t = D_t S_{t-1} + beta_t k_t (v_t - (D_t S_{t-1})^T k_t)^T,    D_t = diag(exp(decay_t)),    o_t = S_t^T q_t

Kimi Delta Attention (Kimi Team, 2025), after Gated DeltaNet (Yang et al., 2024). A CPU core takes tokens one by one,
for a head's memory stays in its cache (measured: 3 times as fast at 32 heads of 128 x 128); elsewhere a run of tokens
is taken in chunks, whose inner corrections are one triangular system (the WY form of Yang et al., 2024).

Everything is float32, for a memory lives as long as its sequence. In chunks decays are summed in float64 and only ever
used as the sum between an earlier and a later token: nothing overflows or cancels, however fast a channel forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.nn import functional

CHUNK = 64
_TILE = 16  # of a chunk's score matrix: off the diagonal two tiles meet at a token between them and are one product
_EPSILON = 1e-6


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    memory: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    borders: Sequence[int],
) -> torch.Tensor:
    """A ragged batch: sequence b owns tokens [borders[b], borders[b + 1]), goes on from memory[sources[b]] and leaves
    what that has become in memory[targets[b]]. No target is the source of another sequence.

    q, k, decay [T, heads, size], v [T, heads, value], beta [T, heads], memory [slots, heads, size, value] float32
    -> [T, heads, value] in the dtype of v. q and k are brought to length one here, and q by size^-0.5; decay <= 0.
    """
    q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)
    values, decay, beta = v.float(), decay.float(), beta.float()
    out = torch.empty_like(values)
    run = steps if v.device.type == "cpu" else chunks
    lengths = [end - begin for begin, end in pairwise(borders)]
    single = [row for row, length in enumerate(lengths) if length == 1]
    if len(single) == len(q):  # a batch that only decodes
        states = memory.index_select(0, sources)
        out = step(q, k, values, decay, beta, states)
        memory.index_copy_(0, targets, states)
        return out.to(v.dtype)
    if single:
        rows = torch.tensor(single, device=q.device)
        at = torch.tensor([borders[row] for row in single], device=q.device)
        states = memory.index_select(0, sources.index_select(0, rows))
        out[at] = step(q[at], k[at], values[at], decay[at], beta[at], states)
        memory.index_copy_(0, targets.index_select(0, rows), states)
    for row, length in enumerate(lengths):
        if length > 1:
            own = slice(borders[row], borders[row + 1])
            before = memory.index_select(0, sources[row : row + 1])
            out[own], after = run(q[own], k[own], values[own], decay[own], beta[own], before)
            memory.index_copy_(0, targets[row : row + 1], after)
    return out.to(v.dtype)


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    """One token of each of B sequences: q, k, decay [B, heads, size], v [B, heads, value], beta [B, heads]
    -> [B, heads, value], all float32. memory [B, heads, size, value] is changed."""
    memory.mul_(decay.exp().unsqueeze(-1))
    recalled = torch.matmul(k.unsqueeze(-2), memory).squeeze(-2)
    memory.addcmul_(k.unsqueeze(-1), ((v - recalled) * beta.unsqueeze(-1)).unsqueeze(-2))
    return torch.matmul(q.unsqueeze(-2), memory).squeeze(-2)


def steps(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """T tokens of one sequence, as `step` for each, T being in the place of B: memory [1, heads, size, value], which
    may be changed -> (output [T, heads, value], the memory after them)."""
    outputs: list[torch.Tensor] = []
    for token in range(len(q)):
        at = slice(token, token + 1)
        outputs.append(step(q[at], k[at], v[at], decay[at], beta[at], memory))
    return torch.cat(outputs), memory


def chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `steps`, in chunks."""
    tokens, memory = len(q), memory.squeeze(0)
    chunk = min(CHUNK, -(-tokens // _TILE) * _TILE)
    q, k, v, decay, weight = (_in_chunks(x, chunk) for x in (q, k, v, decay, beta.unsqueeze(-1)))
    faded = decay.double().cumsum(dim=-2)  # log of what is left, at each token, of what the chunk began with
    total = faded[..., -1:, :]
    opened = _left(faded)
    scores = _scores(torch.stack((k * weight, q)), k, faded)
    # what is written at each token, if the memory were empty (`plain`), and what of the memory that takes back
    system = torch.eye(chunk, device=q.device) + scores[0].tril(-1)
    both = torch.cat((v * weight, k * weight * opened), dim=-1)
    plain, back = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], dim=-1
    )
    asked, kept = q * opened, k * _left(total - faded)
    left = _left(total).transpose(-1, -2)
    out = torch.empty_like(v)
    for index in range(len(v)):
        written = plain[index] - back[index] @ memory
        out[index] = asked[index] @ memory + scores[1, index] @ written
        memory = left[index] * memory + kept[index].transpose(-1, -2) @ written
    return out.transpose(1, 2).reshape(-1, *v.shape[1:2], v.shape[-1])[:tokens], memory.unsqueeze(0)


def _scores(left: torch.Tensor, k: torch.Tensor, faded: torch.Tensor) -> torch.Tensor:
    """left [..., n, heads, chunk, size], k and faded [n, heads, chunk, size] -> [..., n, heads, chunk, chunk]: for
    tokens i >= j the sum over channels of left_i k_j exp(faded_i - faded_j), 0 elsewhere."""
    chunk = k.shape[-2]
    scores = left.new_zeros(*left.shape[:-1], chunk)
    for begin in range(0, chunk, _TILE):
        rows = slice(begin, begin + _TILE)
        upper, mine = left[..., rows, :], faded[..., rows, :]
        if begin:
            middle = faded[..., begin : begin + 1, :]
            earlier = k[..., :begin, :] * _left(middle - faded[..., :begin, :])
            scores[..., rows, :begin] = (upper * _left(mine - middle)) @ earlier.transpose(-1, -2)
        for column in range(_TILE):
            later = slice(begin + column, begin + _TILE)
            since = _left(faded[..., later, :] - faded[..., later.start : later.start + 1, :])
            products = left[..., later, :] * (since * k[..., later.start : later.start + 1, :])
            scores[..., later, later.start] = products.sum(dim=-1)
    return scores


def _in_chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """[T, heads, size] -> [n, heads, chunk, size], the last chunk filled with zeros: tokens that write nothing."""
    padded = functional.pad(x, (0, 0, 0, 0, 0, -len(x) % chunk))
    return padded.unflatten(0, (-1, chunk)).transpose(1, 2)


def _left(faded: torch.Tensor) -> torch.Tensor:
    return faded.float().exp()


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * (x.square().sum(dim=-1, keepdim=True) + _EPSILON).rsqrt()
