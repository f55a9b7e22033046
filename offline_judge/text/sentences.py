"""Sentences of a text in any of the languages we know, with their place in it.

`sentencex` finds the ends that Western punctuation marks. Around it stand the rules that it lacks:
lines, lists, tables and code; 。！？; Korean endings without a full stop; and what must stay whole
(quotations, addresses, dates, abbreviations).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from offline_judge.text.language import language_of

# sentencex takes quadratic time in a line of Chinese, so a long line is shown to it in pieces.
_PIECE = 1_000

_BLOCK = re.compile(
    r"""
    (?P<code> ^[ \t]* (?P<fence>```|~~~) [^`\n]*\n .*? ^[ \t]*(?P=fence)[^\n]* )  # a closed code fence
    | [^\n\r\v\f\x85\u2028\u2029]+                                                # or one line
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)

_SAYS_SOMETHING = re.compile(r"[^\W_]")
_LIST_MARKER = re.compile(
    r"""
    [-*+>•‣◦▪–—·○●■□] | [\u2460-\u2473]
    | [*_]* \(? (?: \d{1,3}(?:\.\d{1,3})* | [A-Za-z가나다라마바사아자차카타파하] | [ivxIVX]{1,5} ) [.)] [*_]*
    """,
    re.VERBOSE,
)

# The ㅂ under the syllable tells the polite 합니다, 습니다, 입니다 from 다니다 and 아니다.
_SYLLABLES_IN_BIEUP = "".join(chr(syllable) for syllable in range(0xAC00 + 17, 0xD7A4, 28))

_END = re.compile(
    rf"""
    [。！？｡] [。！？｡.!?]* [」』”’）)\]】》〉"]* \s*
    | (?: [{_SYLLABLES_IN_BIEUP}]니다 | [가-힣][어아해예에네세까나돼줘]요 | [가-힣]죠 )
      \s+ (?= [가-힣A-Za-z0-9] ) (?! 라[고는며면] )
    """,
    re.VERBOSE,
)

# No sentence ends inside a match or right at its end.
_UNBROKEN = re.compile(
    r"""
    # A quotation or bracket and what hangs on it (「はい。」と答えた); 「一。」「二。」 are two sentences.
    (?: 「[^「」]{1,200}(?=」) | 『[^『』]{1,200}(?=』) | “[^“”]{1,200}(?=”) | ‘[^‘’]{1,200}(?=’)
      | （[^（）]{1,200}(?=）) | "[^"]{1,200}(?=") | \([^()]{1,200}(?=\)) )
    (?: .(?![「『“‘"]) )?
    | [。！？.!?] (?= [」』”’）)\]】》〉] )
    # A web address without the mark that follows it.
    | (?: https?:// | www\. ) [^\s。、「」]* [^\s。、「」.,;:!?)…]
    # 1.5, １．５, 2.0.1, Node.JS, a.b@c.org; but "the end.The next" lacks a space.
    | (?<=[A-Za-z\d]) [.．?!] (?= [\da-z] | [A-Z][A-Z\d] )
    # A Korean date: 2024. 3. 5. 시행.
    | (?<!\d) \d{4}\.\s? \d{1,2}\. (?: \s?\d{1,2}\. )? \s* (?=\S)
    # Abbreviations: before anything, before a number, before a number or a small letter; U.S.は.
    | (?<![A-Za-z])
      (?: (?i: dr | mr | mrs | ms | prof | e\.g | i\.e | cf | vs | approx ) \.\s* (?=\S)
        | (?i: no | nos | figs? | eqs? | sec | ch | vol | art | tab | ver | pp? ) \.\s* (?=\d)
        | (?i: [ap]\.m | etc | inc | ltd | co | corp ) \.\s* (?=[\da-z])
        | (?: [A-Z]\. ){2,} (?=\w) | (?: [A-Z]\. )+ (?=[A-Z]\.) )
    # 음... 그렇습니다: a pause; after a verb's ending it is an end.
    | (?<![다요죠까.…]) (?: \.{2,} | …+ ) \s* (?=[가-힣])
    """,
    re.VERBOSE,
)

# "causes: 1. Age 2. Diet", or with (1), 1) or ①: the first number of a list within a line stands behind
# the end of something. "(1) and (2)" only name items.
_NUMBER = re.compile(
    r"""
    (?P<ended> ^\s* | [:：;.!?。！？]\s+ )? (?<!\S)
    (?: (?P<point> \d{1,2} ) \. | (?P<brackets> \( \d{1,2} ) \) | (?P<bracket> \d{1,2} ) \)
      | (?P<circle> [\u2460-\u2473] ) )
    \s+ (?=\S) (?! (?: and | or | to | & | 및 | 또는 ) \s )
    """,
    re.VERBOSE,
)

# sentencex holds a line that begins with "(1)" or "a)" together and ends one before others.
_BRACKETED = re.compile(r"(?<!\w)(\(?)(\w{1,3})\)")


class Sentence(NamedTuple):
    """A sentence and where it stands: text == original[start:end], without space around it."""

    text: str
    start: int
    end: int


def split_sentences(text: str, language: str | None = None) -> list[Sentence]:
    """Sentences of a text in order, none blank, in time linear in its length.

    A line break ends a sentence. A list marker ("-", "1.") belongs to its item, also where the item
    is on the next line; so do the numbers of a list within a line ("1. Age 2. Diet",
    "(1) Age (2) Diet", "① Age ② Diet"). A table row and a fenced code block are one sentence each.
    A sentence has a letter or a digit: a line of punctuation alone is left out, so "", "..." and "?!"
    give [].

    Args:
        text: Any text.
        language: ISO 639-1 code, for the abbreviations; told from the text if None.
    """
    language = language or language_of(text)
    sentences: list[Sentence] = []
    item_start: int | None = None
    for block in _BLOCK.finditer(text):
        if _LIST_MARKER.fullmatch(block[0].strip()):
            item_start = block.start() if item_start is None else item_start
            continue
        whole = block["code"] is not None or block[0].lstrip().startswith("|")
        spans = [(0, len(block[0]))] if whole else _sentences_of_line(block[0], language)
        for start, end in spans:
            if _SAYS_SOMETHING.search(block[0], start, end):
                start = block.start() + start if item_start is None else item_start
                sentences.append(_stripped(text, start, block.start() + end))
                item_start = None
    if item_start is not None and _SAYS_SOMETHING.search(text, item_start):
        # No item follows, so "42." may be the answer to the line before it.
        start = sentences.pop().start if sentences else item_start
        sentences.append(_stripped(text, start, len(text)))
    return sentences


def _stripped(text: str, start: int, end: int) -> Sentence:
    sentence = text[start:end]
    start += len(sentence) - len(sentence.lstrip())
    sentence = sentence.strip()
    return Sentence(sentence, start, start + len(sentence))


def _sentences_of_line(line: str, language: str) -> list[tuple[int, int]]:
    """Cut a line at its sentence ends: spans that together cover the line."""
    ends = set(_western_ends(line, language))
    ends.update(match.end() for match in _END.finditer(line))
    unbroken = {
        place for match in _UNBROKEN.finditer(line) for place in range(match.start() + 1, match.end() + 1)
    }
    for start, end in _numbers_of_items(line):
        if start not in unbroken:
            ends.add(start)
            ends.difference_update(range(start + 1, end + 1))
    ends -= unbroken

    spans: list[tuple[int, int]] = []
    start = previous = 0
    for end in sorted(ends - {0, len(line)}):
        part = line[previous:end].strip()
        previous = end
        # A marker or a stray mark goes with what follows it.
        if _SAYS_SOMETHING.search(part) and not _LIST_MARKER.fullmatch(part):
            spans.append((start, end))
            start = end
    if spans and not _SAYS_SOMETHING.search(line, start):
        start, _ = spans.pop()
    return [*spans, (start, len(line))]


def _numbers_of_items(line: str) -> Iterator[tuple[int, int]]:
    """Spans of the numbers 1, 2, … of each list within a line; a number alone is none."""
    items_of_kind: dict[str, list[tuple[int, int]]] = {}
    for match in _NUMBER.finditer(line):
        kind = match.lastgroup or ""
        items = items_of_kind.setdefault(kind, [])
        span = (match.start(kind), match.end())
        number = int(unicodedata.normalize("NFKC", match[kind]).lstrip("("))
        if number == len(items) + 1 and (items or match["ended"] is not None):
            items.append(span)
        elif number == 1 and match["ended"] is not None:
            yield from items if len(items) > 1 else ()
            items_of_kind[kind] = [span]
    for items in items_of_kind.values():
        yield from items if len(items) > 1 else ()


def _western_ends(line: str, language: str) -> Iterator[int]:
    """Where sentencex starts a new sentence."""
    import sentencex

    # sentencex refuses lone surrogates, which JSON may bring.
    line = re.sub("[\ud800-\udfff]", "\ufffd", line)
    line = _BRACKETED.sub(lambda match: "X" * len(match[1]) + match[2] + "X", line)
    start = 0
    while start < len(line):
        piece = line[start : start + _PIECE]
        is_last = start + len(piece) == len(line)
        # The second half of a piece is read again, with all that follows it in view.
        limit = len(piece) if is_last else _PIECE // 2
        end = reached = 0
        for sentence in sentencex.segment(language, piece):
            end += len(sentence)
            if end > limit:
                break
            reached = end
            yield start + end
        start += reached if reached and not is_last else limit
