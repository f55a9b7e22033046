"""Is this machine fit to run an evaluation? What `offline-judge doctor` looks at, and what it found."""

from __future__ import annotations

from offline_judge.doctor.examination import examine
from offline_judge.doctor.findings import Finding, Report

__all__ = ["Finding", "Report", "examine"]
