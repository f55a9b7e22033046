"""What the rest of the package needs to know about a text: its language, its sentences, windows over it."""

from offline_judge.text.language import (
    language_of,
    prompt_language,
    prompt_language_named,
    same_script,
)
from offline_judge.text.overlap import word_overlap, words
from offline_judge.text.repetition import without_repeats
from offline_judge.text.sentences import Sentence, split_sentences
from offline_judge.text.windows import Window, windows

__all__ = [
    "Sentence",
    "Window",
    "language_of",
    "prompt_language",
    "prompt_language_named",
    "same_script",
    "split_sentences",
    "windows",
    "without_repeats",
    "word_overlap",
    "words",
]
