"""Prompts: versioned TOML files, one per question and language, and the code that fills them.

A file holds `version`, `system`, `user` (a template with {field} marks), for a choice its
`options`, `[[examples]]` (the template's fields and the `answer` that they should get),
`[texts]`, short texts that a setting chooses between, and for a choice a `[control]`.
What all asks of one prompt share stands first (system, examples), then the fields in the
template's order, longest-lived first, so that a prefix cache pays for a premise only once.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from offline_judge.prompts.control import Control
from offline_judge.text import without_repeats

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Message: TypeAlias = tuple[Literal["system", "user", "assistant"], str]

#: Languages that every prompt is written in.
LANGUAGES = ("en", "ko")
_FOLDER = Path(__file__).parent
_FIELD = re.compile(r"\{(\w+)\}")
_TAG = re.compile(r"</?(\w+)>")
_NAME = re.compile(r"[\s/\\]*(\w+)")
_OPENING = re.compile("[<＜﹤](?=(.{1,64}))", re.DOTALL)
#: Raised whenever the same values fill a template in another way: it goes into every prompt's digest.
_FENCE_VERSION = 3


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in one language.

    `digest` is the hash of everything in the file and of how its fields are filled: it goes into the
    key of every stored answer, so an edited prompt never meets an old answer even where its version was
    forgotten.
    """

    id: str
    language: str
    version: int
    digest: str
    fields: tuple[str, ...]
    options: tuple[str, ...]
    head: tuple[Message, ...]
    template: str
    tags: frozenset[str]
    texts: tuple[tuple[str, str], ...]
    control: Control | None = None

    def text(self, name: str) -> str:
        """Return the short text `name` of the file's [texts] table."""
        return dict(self.texts)[name]

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """Fill the template: system and examples first, then the user's message."""
        return (*self.head, ("user", self.fill(values)))

    def fill(self, values: Mapping[str, str]) -> str:
        """Put each value in its field; a value can neither close its field nor open another one.

        What a value repeats over and over in a row is cut down to twice.
        """
        return _FIELD.sub(lambda match: _fenced(values[match.group(1)], self.tags), self.template)


# A premise is filled in for every claim about it, and neighbours share it.
@lru_cache(maxsize=256)
def _fenced(text: str, tags: frozenset[str]) -> str:
    # Only our own tags matter: other markup in a chunk is content and stays as it is.
    return _OPENING.sub(lambda match: "‹" if _is_tag(match[1], tags) else match[0], without_repeats(text))


def _is_tag(text: str, tags: frozenset[str]) -> bool:
    """Tell whether what stands behind a `<` is one of our tags, or reads like one."""
    if not text.isascii():  # full-width letters, invisible characters
        text = unicodedata.normalize("NFKC", text)
        text = "".join(one for one in text if unicodedata.category(one) != "Cf")
    name = _NAME.match(text)
    return name is not None and name[1].lower() in tags


def load(prompt_id: str, language: str) -> Prompt:
    """Load `prompts/<language>/<prompt_id>.toml`; a language that is not ours gets the English one.

    An id that ends in `.toml` is the path of a file of the caller's own, whatever the language.
    """
    return _load(prompt_id, language if language in LANGUAGES else "en")


@cache
def _load(prompt_id: str, language: str) -> Prompt:
    path = _FOLDER / language / f"{prompt_id}.toml"
    if prompt_id.endswith(".toml"):
        path = Path(prompt_id)
        prompt_id = path.stem
    raw = path.read_bytes()
    content = tomllib.loads(raw.decode("utf-8"))
    template = content["user"].strip()
    control = content.get("control")
    prompt = Prompt(
        id=prompt_id,
        language=language,
        version=content["version"],
        digest=hashlib.sha256(b"%d:" % _FENCE_VERSION + raw).hexdigest()[:16],
        fields=tuple(dict.fromkeys(_FIELD.findall(template))),
        options=tuple(content.get("options", ())),
        head=(),
        template=template,
        tags=frozenset(tag.lower() for tag in _TAG.findall(template)),
        texts=tuple(content.get("texts", {}).items()),
        control=Control(**control | {"values": tuple(control["values"].items())}) if control else None,
    )
    head: list[Message] = [("system", content["system"].strip())]
    for example in content.get("examples", ()):
        head.append(("user", prompt.fill(example)))
        head.append(("assistant", example["answer"].strip()))
    return replace(prompt, head=tuple(head))


def catalogue() -> dict[str, dict[str, str]]:
    """Every prompt with its version and digest by language, for the run record."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(_FOLDER.glob("*/*.toml")):
        prompt = load(path.stem, path.parent.name)
        found.setdefault(prompt.id, {})[prompt.language] = f"v{prompt.version} {prompt.digest}"
    return found
