"""Which language a text is written in, from counts of its letters by script. No model, no word list."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "ko", "ja", "zh"]
PromptLanguage: TypeAlias = Literal["en", "ko"]

# Called several times for every row: the beginning of a text tells its language.
_N_CHARACTERS_READ = 2_000

# A Hangul, kana or Han letter carries two to three Latin ones, and product names stay in Latin
# letters, so a fifth of the letters is already most of the words.
_EAST_ASIAN_SHARE = 0.2

# Japanese prose is half kana; a lone の on a Chinese sign is not Japanese.
_KANA_SHARE = 0.1

_HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff\uffa1-\uffdc]+")
_KANA = re.compile("[\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff\uff66-\uff9d]+")
_HAN = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_LETTERS = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> Language:
    """Language of a text: "ko", "ja", "zh", or "en" for everything else, blank text included.

    Of the letters in the first 2,000 characters, let E be those in Hangul, kana or Han.
    E below a fifth of all letters is "en". Otherwise Hangul no rarer than kana and Han
    together is "ko"; kana at least a tenth of kana and Han is "ja"; the rest is "zh".
    Digits and punctuation don't count. "en" is therefore also said of French or Russian.
    """
    text = text[:_N_CHARACTERS_READ]
    if text.isascii():
        return "en"
    n_hangul, n_kana = len(_found(_HANGUL, text)), len(_found(_KANA, text))
    n_chinese_or_japanese = n_kana + len(_found(_HAN, text))
    n_east_asian = n_hangul + n_chinese_or_japanese
    if n_east_asian == 0 or n_east_asian < _EAST_ASIAN_SHARE * len(_found(_LETTERS, text)):
        return "en"
    if n_hangul >= n_chinese_or_japanese:
        return "ko"
    return "ja" if n_kana >= _KANA_SHARE * n_chinese_or_japanese else "zh"


def prompt_language(text: str) -> PromptLanguage:
    """Language of the prompt to use for a text: "ko" for Korean, else "en"."""
    return "ko" if language_of(text) == "ko" else "en"


def prompt_language_named(code: str) -> PromptLanguage:
    """Language of the prompt to use for a language code: "ko" for "ko", "KO" or "ko-KR", else "en"."""
    named = re.fullmatch(r"ko(?:r|rean)?(?:-\w+)*", code.strip().replace("_", "-"), re.IGNORECASE)
    return "ko" if named else "en"


def same_script(a: str, b: str) -> bool:
    """Whether `b` is written mainly in the script of `a`; True where either has no letters.

    Tells that what a judge wrote about `a` stayed in the language of `a`. Korean, Japanese and
    Chinese are told apart as `language_of` does; any other text counts as the script that most
    of its letters belong to, so French and English are one script, Russian and English are two.
    """
    scripts = _script_of(a), _script_of(b)
    return None in scripts or scripts[0] == scripts[1]


def _script_of(text: str) -> str | None:
    """Return "ko", "ja", "zh" or a Unicode script name such as "LATIN"; None without letters."""
    text = text[:_N_CHARACTERS_READ]
    letters = _found(_LETTERS, text)
    if not letters:
        return None
    if text.isascii():
        return "LATIN"
    if (language := language_of(text)) != "en":
        return language
    # A letter's Unicode name begins with its script: "CYRILLIC SMALL LETTER A".
    scripts = Counter(unicodedata.name(letter, "UNNAMED").partition(" ")[0] for letter in letters)
    return scripts.most_common(1)[0][0]


def _found(letters: re.Pattern[str], text: str) -> str:
    return "".join(letters.findall(text))
