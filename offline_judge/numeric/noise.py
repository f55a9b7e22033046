"""Noise sensitivity: wrong claims of the response that come from the retrieved chunks."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from offline_judge.numeric.blocks import in_blocks
from offline_judge.numeric.logic import any_of
from offline_judge.numeric.padding import Padded, as_numbers, filled
from offline_judge.numeric.rates import masked_mean

Mode: TypeAlias = Literal["relevant", "irrelevant"]


def noise_sensitivity(
    reference_in_chunk: Padded, response_in_chunk: Padded, correct: Padded, *, mode: Mode = "relevant"
) -> Tensor:
    """Share of the response's claims that are wrong and come from relevant, or from irrelevant, chunks.

        relevant_k   = any_g R[g,k]
        from_rel_c   = any_k (relevant_k  & A[c,k])
        from_irrel_c = any_k (~relevant_k & A[c,k])
        relevant     = mean_c (from_rel_c & ~correct_c)
        irrelevant   = mean_c (from_irrel_c & ~from_rel_c & ~correct_c)

    A claim that relevant and irrelevant chunks both support counts as relevant noise only.

    Args:
        reference_in_chunk: (B, G, K) verdict R[g,k]: chunk k supports reference claim g. Hard verdicts
            may be bool, here and below: that is the fastest, numbers are looked through first.
        response_in_chunk: (B, C, K) verdict A[c,k]: chunk k supports response claim c.
        correct: (B, C) verdict: the reference supports response claim c. Its mask says which
            claims there are.
        mode: which of the two.

    Returns:
        (B,) float64 in [0, 1]; 0 where there is no chunk; NaN where there is no response claim.

    Raises:
        ValueError: B or C differ between the inputs, or `mode` is unknown.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode is one of {get_args(Mode)}, not {mode!r}")
    _check_shapes(reference_in_chunk, response_in_chunk, correct)

    def score(r: Tensor, r_mask: Tensor, a: Tensor, a_mask: Tensor, right: Tensor, claims: Tensor) -> Tensor:
        r, a, right = _present(r, r_mask), _present(a, a_mask), _present(right, claims)
        if all(map(_is_hard, (r, a, right))):
            return masked_mean(_noise_of_sets(r, a, mode) & ~right.bool(), claims)
        r, a, right = r.double(), a.double(), right.double()
        relevant, in_chunk = any_of(_rows_last(r), dim=0), _rows_last(a)
        # A row without claims on one side does not say there how many chunks it has, so the two
        # widths may differ. What is cut off or filled up meets no claim of the other side.
        relevant = torch.nn.functional.pad(relevant, (0, 0, 0, a.shape[2] - relevant.shape[0]))
        source = any_of(relevant * in_chunk, dim=1)
        if mode == "irrelevant":
            source = any_of((1 - relevant) * in_chunk, dim=1) * (1 - source)
        return masked_mean(source.t() * (1 - right), claims)

    return in_blocks(score, *reference_in_chunk, *response_in_chunk, *correct)


#: Chunks that the integers of a float64 can tell apart, and of a float32, in which bool is multiplied.
_MAX_SET, _MAX_SHORT_SET = 52, 24


def _present(values: Tensor, mask: Tensor) -> Tensor:
    """False or 0.0 where the mask is False; no copy of numbers where nothing is padding."""
    if values.dtype == torch.bool:
        return values & mask
    # The minimum of bytes takes a fifteenth of the time of `all`.
    complete = mask.numel() > 0 and bool(mask.view(torch.uint8).amin())
    return values.double() if complete else filled(values, mask)


def _is_hard(verdicts: Tensor) -> bool:
    """Whether all verdicts, which lie in [0, 1], are 0 or 1: only those are their own squares."""
    if verdicts.numel() == 0 or (verdicts.ndim == 3 and verdicts.shape[2] > _MAX_SET):
        return False
    if verdicts.dtype == torch.bool:
        return True
    flat = verdicts.reshape(-1)
    return bool(torch.dot(flat, flat) == flat.sum())


def _noise_of_sets(reference_in_chunk: Tensor, response_in_chunk: Tensor, mode: Mode) -> Tensor:
    """(B, C) bool of hard verdicts: a claim's chunks are a set, and a set is the bits of one number."""
    relevant = _chunk_sets(reference_in_chunk)
    union = relevant[:, 0]
    for one in relevant.unbind(1)[1:]:
        union = union | one
    sets, union = _chunk_sets(response_in_chunk), union[:, None]
    from_relevant = (sets & union) != 0
    return from_relevant if mode == "relevant" else ((sets & ~union) != 0) & ~from_relevant


def _chunk_sets(verdicts: Tensor) -> Tensor:
    """(B, N, K) of 0 and 1, or bool, to (B, N) integers, whose bit k is the verdict on chunk k."""
    n_chunks = verdicts.shape[2]
    short = verdicts.dtype == torch.bool and n_chunks <= _MAX_SHORT_SET
    dtype = torch.float32 if short else torch.float64
    bits = torch.exp2(torch.arange(n_chunks, dtype=dtype, device=verdicts.device))
    sets = as_numbers(verdicts, dtype).reshape(-1, n_chunks) @ bits
    if not short:
        sets.round_()  # a verdict may miss 1 by what is lost in a sum
    return sets.to(torch.int32 if n_chunks < 32 else torch.int64).view(verdicts.shape[:2])


def _rows_last(values: Tensor) -> Tensor:
    """(B, N, K) to a contiguous (N, K, B): reductions over a last dimension of ten are slow."""
    return values.flatten(1).t().contiguous().view(*values.shape[1:], values.shape[0])


def _check_shapes(reference_in_chunk: Padded, response_in_chunk: Padded, correct: Padded) -> None:
    shapes = [tuple(padded.values.shape) for padded in (reference_in_chunk, response_in_chunk, correct)]
    if shapes[1][:2] != shapes[2] or shapes[0][0] != shapes[2][0]:
        raise ValueError(
            "reference_in_chunk (B, G, K), response_in_chunk (B, C, K) and correct (B, C) do not agree: "
            + ", ".join(map(str, shapes))
        )
