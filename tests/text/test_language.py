from __future__ import annotations

import pytest

from offline_judge.text.language import (
    language_of,
    prompt_language,
    prompt_language_named,
    same_script,
)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The warranty lasts two years.", "en"),
        ("교통비 영수증은 언제 첨부하나요?", "ko"),
        ("RTX 5090 GPU 메모리는 32GB입니다", "ko"),
        ("Kubernetes Deployment의 replicas를 3으로 설정합니다", "ko"),
        ("大韓民國의 首都는 서울이다", "ko"),
        ("한글".encode().decode() + " " + "\u1112\u1161\u11ab\u1100\u1173\u11af", "ko"),
        ("The word 안녕하세요 means hello in Korean.", "en"),
        ("最初の大会は1967年に開かれました", "ja"),
        ("RTX 5090のGPUメモリは32GBです", "ja"),
        ("韓国語で「안녕하세요」はこんにちはです", "ja"),
        ("北京是中国的首都。", "zh"),
        ("使用Kubernetes部署应用", "zh"),
        ("日月潭の茶是台湾著名的红茶之一", "zh"),
        ("El museo está cerrado los lunes.", "en"),
        ("Музей закрыт.", "en"),
        ("", "en"),
        (" \n\u3000", "en"),
        ("1967 — 15%", "en"),
    ],
)
def test_language(text: str, language: str) -> None:
    assert language_of(text) == language


def test_hangul_share_that_decides_is_a_fifth_of_the_letters() -> None:
    assert language_of("가" * 20 + "x" * 80) == "ko"
    assert language_of("가" * 20 + "x" * 81) == "en"


def test_only_the_beginning_is_read() -> None:
    assert language_of("a" * 2_000 + "가" * 100_000) == "en"


def test_prompt_language_is_korean_for_korean_alone() -> None:
    assert prompt_language("연차는 15일입니다.") == "ko"
    assert prompt_language("北京是中国的首都。") == "en"
    assert prompt_language("") == "en"


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("10만원을 넘으면 첨부합니다.", "교통비 영수증은 언제 첨부하나요?", True),
        ("10만원을 넘으면 첨부합니다.", "When must receipts be attached?", False),
        ("When must receipts be attached?", "10만원을 넘으면 첨부합니다.", False),
        ("RTX 5090 GPU 메모리는 32GB입니다", "RTX 5090의 메모리는 32GB이다.", True),
        ("最初の大会は1967年に開かれました", "第一届大会于1967年举行。", False),
        ("Музей закрыт по понедельникам.", "The museum is closed on Mondays.", False),
        ("Музей закрыт по понедельникам.", "Когда закрыт музей?", True),
        ("Le musée est fermé.", "The museum is closed.", True),
        ("1967", "최초의 대회", True),
        ("최초의 대회", "", True),
    ],
)
def test_same_script(a: str, b: str, same: bool) -> None:
    assert same_script(a, b) is same


@pytest.mark.parametrize(
    ("code", "language"),
    [
        *((code, "ko") for code in ("ko", "KO", " ko-KR", "ko_KR", "kor", "Korean")),
        *((code, "en") for code in ("en", "de", "", "kok", "ko/../en", "../ko", "ko.toml\0", "x" * 10**6)),
    ],
)
def test_a_named_language_is_one_that_prompts_are_written_in(code: str, language: str) -> None:
    assert prompt_language_named(code) == language
