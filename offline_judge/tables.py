"""What a person reads in a terminal: coverage, summary, one row's evidence, the list of metrics."""

from __future__ import annotations

import dataclasses
import inspect
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from offline_judge.engine.store_contents import StoreContents
from offline_judge.schema import Coverage
from offline_judge.summary import summary_rows

if TYPE_CHECKING:
    from offline_judge.comparison import Compared

_TEXT_WIDTH = 110

#: Row text may hold what a terminal obeys: escape sequences, and marks that turn the writing direction.
_VISIBLE = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (
        *range(0x09),
        *range(0x0B, 0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}


def coverage_text(coverage: Coverage) -> str:
    """Say which metric can score how many rows, and which rows and columns stop it."""
    return _table(("metric", "can score", "missing"), coverage.table())


def rows_text(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out rows under their heads."""
    return _table(heads, rows)


def summary_text(record: Mapping[str, Any]) -> str:
    """Lay out the summary of a run record with what it stands on and what it cost."""
    lines = [
        _table(("metric", "mean", "soft", "scored", "unscored because"), summary_rows(record["summary"]))
    ]
    usage = record.get("usage")
    if usage:
        models = ", ".join(f"{role} {model['name']}" for role, model in record["models"].items())
        lines += [
            f"{record['dataset']['rows']} rows in {record['seconds']:.1f} s; {models or 'no model'}",
            f"{usage['asks']:,} asks: {usage['calls']:,} sent to the judge "
            f"({usage['generated']:,} generated), {usage['from_store']:,} from the store",
            *_verifier_lines(usage),
            f"tokens: {usage['prompt_tokens']:,} prompt ({usage['cached_tokens']:,} cached), "
            f"{usage['output_tokens']:,} output",
            *_cost_lines(usage),
        ]
    return "\n".join(lines)


def _verifier_lines(usage: Mapping[str, Any]) -> list[str]:
    """What the verifier did, and which share of a cascade's claims went to the judge."""
    lines = []
    if usage.get("verified"):
        lines.append(
            f"verifier: {usage['verified']:,} pairs, {usage['verified_tokens']:,} tokens "
            f"in {usage['verifier_s']:.1f} s"
        )
    n_claims = usage.get("cascade_decided", 0) + usage.get("cascade_to_judge", 0)
    if n_claims:
        share = usage["cascade_to_judge"] / n_claims
        lines.append(f"cascade: {share:.1%} of {n_claims:,} checks went to the judge")
    return lines


def _cost_lines(usage: Mapping[str, Any]) -> list[str]:
    """What each metric cost, where the judge was asked at all."""
    rows = [
        (
            label,
            f"{cost['calls']:,}",
            f"{cost['prompt_tokens']:,}",
            f"{cost['cached_tokens']:,}",
            f"{cost['output_tokens']:,}",
            f"{cost['judge_s']:.1f}",
        )
        for label, cost in usage["by_metric"].items()
        if cost["calls"]
    ]
    lines = [_table(("charged to", "calls", "prompt", "cached", "output", "judge s"), rows)] if rows else []
    if usage["peak_gpu_bytes"]:
        lines.append(f"GPU memory in use, at most: {usage['peak_gpu_bytes'] / 2**30:.1f} GiB")
    return lines


def comparison_text(compared: Sequence[Compared]) -> str:
    """Lay out two runs side by side."""
    rows = [
        (
            one.metric + (" (lower is better)" if one.better == "lower" else ""),
            f"{one.first:.3f}",
            f"{one.second:.3f}",
            f"{one.difference.value:+.3f} ({one.difference.low:+.3f} to {one.difference.high:+.3f})",
            f"{one.n_better}",
            f"{one.n_worse}",
            f"{one.n_scored} of {one.n_rows}",
        )
        for one in compared
    ]
    heads = ("metric", "first", "second", "difference (95 %)", "better", "worse", "scored in both")
    return _table(heads, rows)


def store_text(found: StoreContents) -> str:
    """Lay out what an answer store holds: by model the answers, their text, and the runs that asked."""
    rows = [
        (
            one.model or "(unknown)",
            one.fingerprint[:8],
            f"{one.n_answers:,}",
            f"{one.n_bytes / 1e6:,.1f} MB",
            _day(one.first),
            _day(one.last),
        )
        for one in found.models
    ]
    lines = [
        f"{found.path}: {found.n_answers:,} answers, {found.n_bytes / 1e6:,.1f} MB on disk; "
        + (f"DAMAGED: {found.problem}" if found.problem else "sound")
    ]
    if rows:
        lines.append(_table(("model", "fingerprint", "answers", "text", "first run", "last run"), rows))
    lines += [f"set aside as damaged: {path}" for path in found.set_aside]
    return "\n".join(lines)


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def metrics_text(metrics: Mapping[str, type[Any]]) -> str:
    """List the registered metrics by name: range, needs, settings, source and version."""
    return "\n\n".join(_metric_text(metrics[name]) for name in sorted(metrics))


def _metric_text(cls: type[Any]) -> str:
    settings = ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(cls))
    lines = {
        "": (inspect.getdoc(cls) or "").partition("\n")[0],
        "range": f"{cls.range}, {cls.better} is better",
        "needs": ", ".join(cls.needs),
        "uses": ", ".join(cls.uses),
        "settings": settings,
        "alias": ", ".join(cls.aliases),
        "source": cls.source,
    }
    head = f"{cls.name}  (version {cls.version})"
    return "\n".join(
        [head, *(f"  {label:<8}  {text}" if label else f"  {text}" for label, text in lines.items() if text)]
    )


def evidence_text(row_id: str, evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """Lay out one row: each metric's score and the claims, chunks or sentences that it comes from."""
    parts = [f"row {row_id}"]
    for label, line in evidence.items():
        score = f"unscored: {line['unscored']}" if line["score"] is None else f"{line['score']:.3f}"
        soft = "" if line["soft"] is None else f" (soft {line['soft']:.3f})"
        flags = f" [{' '.join(line['flags'])}]" if line["flags"] else ""
        parts.append(f"\n{label}  {score}{soft}{flags}")
        parts.extend(_evidence_lines(line))
    return "\n".join(parts).translate(_VISIBLE)


def _evidence_lines(line: Mapping[str, Any]) -> Iterable[str]:
    if line["checks"]:
        for check in line["checks"]:
            yield f"  {check['p']:.2f}  {check['claim']}   <- {check['source']}"
            if "reason" in check:
                yield f"        {check['reason']}"
        return
    # Without checks there is one list of texts (chunks, sentences, questions) and the vectors about it.
    for texts in line["texts"].values():
        vectors = [value for value in (line["values"] or {}).values() if _is_about(value, texts)]
        for text, *numbers in zip(texts, *vectors, strict=True):
            yield f"  {'  '.join(f'{number:.2f}' for number in numbers)}  {' '.join(text.split())}"


def _is_about(value: Any, texts: Sequence[str]) -> bool:
    return isinstance(value, list) and len(value) == len(texts) and not isinstance(value[0], list)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = Table(box=None, pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # Written to a string, so that the same table goes to a terminal, a file and a notebook.
    console = Console(file=io.StringIO(), width=_TEXT_WIDTH, color_system=None, markup=False, highlight=False)
    console.print(table)
    return "\n".join(text.rstrip() for text in console.file.getvalue().splitlines())  # type: ignore[attr-defined]
