"""What an examination found: plain records, shown as tables by `offline_judge.doctor.report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

#: "fine", "note" (worth knowing, no reason to stop) or "wrong" (exit status 1).
State: TypeAlias = Literal["fine", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it is, how it is, in plain words, and the fix where it is wrong."""

    name: str
    state: State
    text: str
    to_fix: str = ""


@dataclass(frozen=True)
class Report:
    """All findings, by section in the order in which they are shown."""

    sections: Mapping[str, Sequence[Finding]] = field(default_factory=dict)

    @property
    def wrong(self) -> list[Finding]:
        """The findings that stand in the way of a run."""
        return [one for found in self.sections.values() for one in found if one.state == "wrong"]
