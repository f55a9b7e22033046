from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.numeric.logic import all_of, any_of

tables = st.integers(0, 5).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1)
)


@given(tables)
def test_on_0_and_1_these_are_any_and_all(rows):
    verdicts = torch.tensor(rows, dtype=torch.float64)
    assert any_of(verdicts, dim=1).tolist() == [any(row) for row in rows]
    assert all_of(verdicts, dim=1).tolist() == [all(row) for row in rows]


def test_any_is_the_most_probable_and_all_the_product():
    # max(0.5, 0.25) = 0.5 and 0.5 * 0.25 = 0.125
    verdicts = torch.tensor([[0.5, 0.25]])
    assert any_of(verdicts, dim=-1).item() == 0.5
    assert all_of(verdicts, dim=-1).item() == 0.125
