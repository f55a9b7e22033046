"""A report as tables for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from offline_judge.doctor.findings import Report

_STYLES = {"fine": "green", "note": "yellow", "wrong": "bold red"}


def print_report(report: Report, console: Console | None = None) -> None:
    """Print a table with all sections, the fix below what is wrong, and a last line that sums up."""
    console = console or Console(highlight=False)
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    for no_wrap in (True, True, False):
        table.add_column(no_wrap=no_wrap, overflow="fold")
    for section, findings in report.sections.items():
        table.add_row(Text(section, style="bold"))
        for one in findings:
            table.add_row(Text(f"  {one.name}"), Text(one.state, style=_STYLES[one.state]), Text(one.text))
            if one.to_fix:
                table.add_row("", "", Text(f"to fix: {one.to_fix}"))
    console.print(table)
    n = len(report.wrong)
    console.print(f"\n{n} thing{'s' * (n != 1)} to mend" if n else "\neverything a run needs is here")
