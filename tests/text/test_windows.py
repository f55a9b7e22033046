from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.text.windows import windows

CountTokens = Callable[[Sequence[str]], list[int]]


def count_words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def count_bytes(texts: Sequence[str]) -> list[int]:
    return [len(text.encode()) for text in texts]


def count_pairs(texts: Sequence[str]) -> list[int]:
    """Two characters a token, rounded down: a text may have more tokens than its parts together."""
    return [len(text) // 2 for text in texts]


def test_windows_overlap_by_one_sentence() -> None:
    text = "One two. Three four. Five six. Seven eight."
    assert [window.text for window in windows(text, count_words, 4)] == [
        "One two. Three four. ",
        "Three four. Five six. ",
        "Five six. Seven eight.",
    ]
    assert [window.text for window in windows(text, count_words, 4, overlap_sentences=0)] == [
        "One two. Three four. ",
        "Five six. Seven eight.",
    ]


def test_overlap_gives_way_to_the_next_sentence() -> None:
    text = "One two three. Four five six seven. Eight."
    assert [window.text for window in windows(text, count_words, 4, overlap_sentences=2)] == [
        "One two three. ",
        "Four five six seven. ",
        "Eight.",
    ]


def test_long_sentence_is_cut_at_spaces_and_a_long_word_anywhere() -> None:
    assert [window.text for window in windows("abc de fghi klmn", count_bytes, 9, 0)] == [
        "abc de ",
        "fghi klmn",
    ]
    assert [window.text for window in windows("가" * 5, count_bytes, 6, 0)] == ["가가", "가", "가가"]


def test_text_that_fits_is_one_window() -> None:
    text = " One. Two. "
    assert windows(text, count_words, 2) == [(text, 0, len(text))]


def test_text_with_no_more_bytes_than_the_budget_is_not_counted() -> None:
    def must_not_count(texts: Sequence[str]) -> list[int]:
        raise AssertionError("counted")

    assert windows("12345", must_not_count, 5) == [("12345", 0, 5)]


def test_blank_text_is_cut_like_any_other() -> None:
    assert windows("", count_bytes, 1) == [("", 0, 0)]
    assert windows(" \n ", count_bytes, 2, 0) == [(" ", 0, 1), ("\n ", 1, 3)]


@pytest.mark.parametrize(("text", "budget", "overlap"), [("a", 0, 1), ("a", 1, -1), ("가나", 2, 1)])
def test_impossible_budgets_are_refused(text: str, budget: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="budget"):
        windows(text, count_bytes, budget, overlap)


@given(
    text=st.lists(
        st.sampled_from(
            ["One. ", "two ", "Three! ", "연차는 ", "15일입니다. ", "...", "\n", "- ", "xxxxxxxxxx"]
        ),
        max_size=40,
    ).map("".join),
    n_tokens=st.sampled_from([count_words, count_bytes, count_pairs]),
    budget=st.integers(4, 40),
    overlap=st.integers(0, 3),
)
def test_windows_fit_the_budget_and_cover_the_text(
    text: str, n_tokens: CountTokens, budget: int, overlap: int
) -> None:
    found = windows(text, n_tokens, budget, overlap)
    assert all(window.text == text[window.start : window.end] for window in found)
    assert all(size <= budget for size in n_tokens([window.text for window in found]))
    assert found[0].start == 0
    assert found[-1].end == len(text)
    for one, next_one in pairwise(found):
        assert one.start < next_one.start <= one.end < next_one.end
        if overlap == 0:
            assert next_one.start == one.end
