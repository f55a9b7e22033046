from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offline_judge.backends.prefix_groups import PrefixGroup, common_prefix_length, prefix_groups

INSTRUCTION = [0] * 100


def prompts(premise: int, n_claims: int) -> list[list[int]]:
    return [INSTRUCTION + [premise] * 300 + [premise, claim, claim] for claim in range(1000, 1000 + n_claims)]


def test_each_premise_is_a_group_behind_its_whole_premise():
    calls = prompts(1, 10) + prompts(2, 10)
    assert prefix_groups(calls) == [PrefixGroup(0, 10, 401), PrefixGroup(10, 20, 401)]


def test_a_lone_premise_neither_shortens_its_neighbours_prefix_nor_swallows_the_next():
    calls = prompts(1, 5) + prompts(2, 1) + prompts(3, 5)
    assert [group.n_prefix for group in prefix_groups(calls)] == [401, 0, 401]


def test_lone_premises_share_the_instruction():
    calls = [prompt for premise in range(1, 9) for prompt in prompts(premise, 1)]
    assert prefix_groups(calls) == [PrefixGroup(0, 8, 100)]


def test_short_common_beginnings_count_as_none():
    assert prefix_groups([[7] * 20 + [i] * 50 for i in range(4)]) == [PrefixGroup(0, 4, 0)]


def test_equal_prompts_keep_their_last_token_behind_the_prefix():
    assert prefix_groups([[1] * 80, [1] * 80]) == [PrefixGroup(0, 2, 79)]


def test_none_and_one():
    assert prefix_groups([]) == []
    assert prefix_groups([[1] * 80]) == [PrefixGroup(0, 1, 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), max_size=12))
def test_groups_cover_all_prompts_in_order_and_share_what_they_claim(parts):
    calls = sorted([a] * 70 + [b] * 70 + [c] for a, b, c in parts)
    groups = prefix_groups(calls)
    assert [i for group in groups for i in range(group.start, group.stop)] == list(range(len(calls)))
    for group in groups:
        for prompt in calls[group.start : group.stop]:
            assert len(prompt) > group.n_prefix
            assert common_prefix_length(prompt, calls[group.start]) >= group.n_prefix
