from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.text.sentences import split_sentences


def texts(text: str, language: str | None = None) -> list[str]:
    return [sentence.text for sentence in split_sentences(text, language)]


# "|" stands where a sentence ends and the next begins; the text itself is the parts joined.
@pytest.mark.parametrize(
    "marked",
    [
        # English
        "Dr. Smith went to the U.S. in 1967. |He paid $3.50 for e.g. apples. |Yes! |See sec. 3.2.",
        "J. K. Rowling wrote it. |It was 5 p.m. |He left.",
        "See Fig. 3 and No. 5 and Eq. 4. |The gap is approx. 5 mm. |Did it fit? |No. |It did not.",
        "Max warp is 1.5% under 1.6 mm, 1.1% above.",
        "See https://a.com/what?Next=1 and a.Kim@b.com. |Use Node.JS or ASP.NET 2.0.1. |Then stop.",
        "This forgot a space.|Well... we go. |Wait... |What?! ?",
        "It is so. |Yes! * *",
        "Non-U.S. citizens pay. |Non-E.U. goods, too. |He left the U.S. |He returned.",
        "Causes: |1. Age 2 to 5 |2. Diet. |It varies |3. Stress. |See a doctor.",
        "Do this. |1. Open it. |2. Close it. |Or that: |1. Wait |2. Go.",
        "Causes: |(1) Age 2 to 5 |(2) Diet |(3) Stress. |See a doctor.",
        "We need: |1) A form |2) A card. |(1) and (2) differ; see (1) to (2).",
        "(1) Stress is bad. |See a doctor. |(a) It is. |It was. |He (USA) left. |So (see 2). |Go.",
        "He scored 1. |She scored 2. |They left.|In 1. |Moses 2 it is so. |See No. 1. |See No. 2.",
        'He said "Stop. Go away." |Then he left (see below. It is late).',
        # Korean
        "교통비 영수증은 10만원을 넘으면 첨부합니다. |연차는 15일입니다! |그런가요? |네",
        "원인은 다음과 같습니다: |1. 정자 질 저하 |2. 내분비 문제 |3. 약물. |의사와 상의하세요.",
        "서류는 다음과 같습니다: |① 신분증 |② 통장 사본. |항목 ① 또는 ②를 봅니다. |① 또는 ② 중 하나입니다.",
        "(1) 스트레스는 나쁘다. |의사를 보라. |가) 끝났다. |나) 시작했다.",
        "① 회사는 이를 정한다. |② 직원은 이를 따른다 |③ 끝",
        "시행일: 2024. 1. 2. 시행됩니다. |다음과 같습니다. |1. 신청합니다. |2. 승인합니다.",
        "3.5%입니다.|연차는 15일입니다.",
        "영수증을 첨부합니다 |10만원 이하는 괜찮아요 |그렇죠 |GPU는 32GB예요",
        "바다 같이 보러 갔다",
        "다 같이 배를 타고 다니다 말았다",
        "사실이 아니다 그렇게 말했다",
        "그는 갑니다 라고 했다",
        "필요 없는 주요 서류",
        '그는 "갑니다 네. 갑니다"라고 했다. |끝',
        "음... 그렇습니다. |시행일은 2024. 3. 5. 입니다. |Dr. 김은 U.S. 출신입니다. |p.m. 5시까지",
        # Japanese and Chinese
        "最初の大会は1967年に開かれました",
        "次は「1971年。」です！|本当？|えっ！？|１．５％です。|v2.0です。",
        "彼は「行こう。早く。」と言った。|「はい。」|「いいえ。」",
        "（注。）です。|東京。）|大阪",
        "A社はDr.です。|Mr.スミスはU.S.の人です。",
        "他说：“走吧。走！”然后离开。|我们走。|价格为3.5元。|No.5是。",
        "见（下。走！）吧。|https://a.com/?q=1。|好",
        # Lines, lists, tables, code
        "The steps\n|1. Open it. |Look.\n|2. Close it.\n\n|- One\r\n|• 둘\u2028|(3) Three\r|four",
        "1. First thing. |2. Second thing.",
        "-\nOne\n|2.\nTwo",
        "How many?\n42.",
        "42.",
        "네.\n|연차는 15일입니다.",
        "So:\n|```python\nx = f(1. )\n\nprint(x). Y()\n```\n|Done.",
        "```\n|Unclosed. |Code",
    ],
)
def test_sentence_ends(marked: str) -> None:
    parts = marked.split("|")
    stated = [part.strip() for part in parts if any(letter.isalnum() for letter in part)]
    assert texts("".join(parts)) == stated


def test_a_table_row_is_one_sentence() -> None:
    assert texts("| It is. Then | c |\n|---|---|\n| 1. X | 2 |") == ["| It is. Then | c |", "| 1. X | 2 |"]


@pytest.mark.parametrize(
    "text", ["", " \n\t", "...", "?!", "…。！", "- \n•\n", "|---|---|\n***", "```\n```", "👍"]
)
def test_text_that_states_nothing_has_no_sentence(text: str) -> None:
    assert split_sentences(text) == []


def test_places_point_into_the_text() -> None:
    assert split_sentences("  One.\n\n - Two 😀. Three ") == [
        ("One.", 2, 6),
        ("- Two 😀.", 9, 17),
        ("Three", 18, 23),
    ]


def test_language_chooses_the_abbreviations() -> None:
    text = "Das kostet z.B. Geld."
    assert texts(text, "de") == [text]


PIECES = st.sampled_from(
    [
        *"ab A1.?!…\"'()「」。！가 \t\n\r\u2028\u3000|-*\ud800😀",
        *["합니다 ", "```\n", "1. ", "Dr. ", "https://a.b/", "2024. 3. 5. ", "word "],
    ]
)


@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from([None, "en", "ko", "ja", "zh"]))
def test_sentences_are_stripped_ordered_and_lose_no_letter(text: str, language: str | None) -> None:
    covered = 0
    for sentence, start, end in split_sentences(text, language):
        assert sentence == text[start:end] == sentence.strip() != ""
        assert not any(letter.isalnum() for letter in text[covered:start])
        covered = end
    assert not any(letter.isalnum() for letter in text[covered:])


def test_a_long_line_is_split_as_its_parts_are() -> None:
    sentence = "北京是「中国。」的首都。"
    assert texts(sentence * 2_000) == [sentence] * 2_000
    sentence = "The U.S. lies there, i.e. Here it is."
    assert texts(f"{sentence} " * 500) == [sentence] * 500


@pytest.mark.parametrize(
    "part",
    ["北京是首都。", "word", "「一。", 'He said "x. ', "```python\n", ". ", "입니다 ", "1. a 2. b ", "A."],
)
def test_time_is_linear(part: str) -> None:
    def split_s(n_characters: int) -> float:
        text = (part * n_characters)[:n_characters]
        start_s = time.process_time()
        split_sentences(text)
        return time.process_time() - start_s

    # Eight times the text: linear code takes 8 times as long, quadratic code 64 times.
    assert split_s(160_000) < 24 * split_s(20_000)
