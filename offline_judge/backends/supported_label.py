"""Which output of a sequence classifier means "the premise supports the claim", and is it true?

The names in the model's configuration say which; pairs that nobody could dispute say whether the names
are right. A model whose names and behaviour differ is refused: silently swapped labels would turn every
score upside down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from offline_judge.errors import UserError

#: (premise, claim) that are plainly supported, and pairs of the same premises that plainly are not:
#: contradicted, or about something that the premise does not mention.
SUPPORTED_PAIRS = (
    ("The museum opens at nine and closes at five every day.", "The museum opens at nine."),
    ("Maria bought three red apples at the market on Monday.", "Maria bought apples."),
    ("The bridge was built in 1932 and is 503 metres long.", "The bridge was built in 1932."),
    ("All employees receive 25 days of paid leave per year.", "Employees get 25 days of paid leave."),
    ("A man is playing a guitar on a stage in front of a crowd.", "A man is playing a guitar."),
    ("The company was founded by two brothers in Seoul.", "The company was founded in Seoul."),
)
UNSUPPORTED_PAIRS = (
    ("The museum opens at nine and closes at five every day.", "The museum never opens."),
    ("Maria bought three red apples at the market on Monday.", "Maria did not buy any apples."),
    ("The bridge was built in 1932 and is 503 metres long.", "The bridge was painted by volunteers."),
    ("All employees receive 25 days of paid leave per year.", "Employees get no paid leave."),
    ("A man is playing a guitar on a stage in front of a crowd.", "The man has two children."),
    ("The company was founded by two brothers in Seoul.", "The company makes kitchen furniture."),
)

#: Of all (supported, unsupported) pairs of probe pairs, the share that must be ranked rightly, and how far
#: the mean probabilities of the two groups must lie apart. Models that work are near 1 in both.
_LEAST_RANKED = 0.85
_LEAST_APART = 0.15

_NEGATION = re.compile(
    r"\b(?:not|non|no|un|in)[ _-]?(?=entail|support|consistent|faithful|factual|grounded)", re.I
)
_SUPPORTED = re.compile(
    r"entail|^support|^consistent|^faithful|^factual|^grounded|^attributable|^true$|^yes$|^correct$", re.I
)
_UNNAMED = re.compile(r"^label[_ ]?\d+$", re.I)


@dataclass(frozen=True)
class SupportedLabel:
    """One output of a classifier. `index` is None for a single logit, which a sigmoid makes a probability."""

    index: int | None
    name: str

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, L) logits to (B,) float64 P(supported): softmax over the labels, or sigmoid of a single one."""
        logits = logits.double()
        if self.index is None:
            return logits[:, 0].sigmoid()
        return logits.softmax(dim=1)[:, self.index]


def named_label(id2label: Mapping[int, str]) -> SupportedLabel | None:
    """Find the one label that is called supported; None where none or several could be."""
    if len(id2label) == 1:
        return SupportedLabel(None, id2label[min(id2label)])
    meant = [index for index, name in id2label.items() if _means_supported(name)]
    return SupportedLabel(meant[0], id2label[meant[0]]) if len(meant) == 1 else None


def find_supported_label(
    id2label: Mapping[int, str],
    logits_of: Callable[[Sequence[tuple[str, str]]], Tensor],
    model_name: str,
) -> SupportedLabel:
    """Read the label from its name and confirm it, or find it, by the obvious pairs.

    Args:
        id2label: the model's labels by index, {0: "entailment", …} or {0: "LABEL_0", …}.
        logits_of: (premise, claim) pairs to their (B, L) logits.
        model_name: how the error calls the model.

    Raises:
        UserError: naming what each label did with the pairs, where the named label does not tell them
            apart (swapped or meaningless labels), or where unnamed labels leave none or several.
    """
    probe = _Probe(id2label, logits_of([*SUPPORTED_PAIRS, *UNSUPPORTED_PAIRS]))
    named = named_label(id2label)
    if named is not None:
        if probe.tells_apart(named):
            return named
        others = [label for label in probe.labels if label.index != named.index and probe.tells_apart(label)]
        cause = f"{others[0].name!r} behaves as {named.name!r} should: swapped labels" if others else None
        raise probe.refusal(
            model_name, f"its label {named.name!r} does not recognise supported claims", cause
        )
    found = [label for label in probe.labels if probe.tells_apart(label)]
    if len(found) != 1:
        raise probe.refusal(model_name, "which label means supported can't be told", None)
    return found[0]


def _means_supported(name: str) -> bool:
    words = name.strip()
    return not _UNNAMED.match(words) and not _NEGATION.search(words) and bool(_SUPPORTED.search(words))


class _Probe:
    """What each label says of the obvious pairs."""

    def __init__(self, id2label: Mapping[int, str], logits: Tensor) -> None:
        self.labels = (
            [SupportedLabel(None, id2label[min(id2label)])]
            if len(id2label) == 1
            else [SupportedLabel(index, name) for index, name in sorted(id2label.items())]
        )
        self._logits = logits.detach().cpu()

    def groups(self, label: SupportedLabel) -> tuple[Tensor, Tensor]:
        """P(label) on the supported and on the unsupported pairs."""
        p = label.probabilities(self._logits)
        return p[: len(SUPPORTED_PAIRS)], p[len(SUPPORTED_PAIRS) :]

    def tells_apart(self, label: SupportedLabel) -> bool:
        """Whether the label is high on supported pairs and low on the others."""
        yes, no = self.groups(label)
        ranked = (yes[:, None] > no[None, :]).double().mean()
        return bool(ranked >= _LEAST_RANKED and yes.mean() - no.mean() >= _LEAST_APART)

    def refusal(self, model_name: str, why: str, cause: str | None) -> UserError:
        """Say what was found."""
        found = {}
        for label in self.labels:
            yes, no = self.groups(label)
            found[f"{label.name!r}"] = f"mean {yes.mean():.2f} on supported pairs, {no.mean():.2f} on others"
        return UserError(
            f"verifier {model_name!r}: {why}",
            {
                **found,
                **({"found": cause} if cause else {}),
                "pairs": f"{len(SUPPORTED_PAIRS)} plainly supported, {len(UNSUPPORTED_PAIRS)} plainly not",
                "to fix": "correct id2label in its config.json, or take an NLI or fact-checking model",
            },
        )
