from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.numeric.logic import all_of, any_of
from offline_judge.numeric.padding import pad


@given(st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=5))
def test_on_0_and_1_these_are_any_and_all(rows):
    values, mask = pad(rows, ndim=1)
    assert any_of(values, mask, dim=1).tolist() == [any(row) for row in rows]
    assert all_of(values, mask, dim=1).tolist() == [all(row) for row in rows]


def test_any_is_the_most_probable_and_all_the_product():
    # max(0.5, 0.25) = 0.5 and 0.5 * 0.25 = 0.125; the masked 0.75 and 0 count for nothing
    verdicts = torch.tensor([[0.5, 0.25, 0.75, 0.0]])
    mask = torch.tensor([[True, True, False, False]])
    assert any_of(verdicts, mask, dim=-1).item() == 0.5
    assert all_of(verdicts, mask, dim=-1).item() == 0.125
