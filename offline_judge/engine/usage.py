"""What a run cost: calls, tokens and seconds, in all and by metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cost:
    """What the asks of one metric cost.

    An ask that several metrics share is charged to the first that asked it. The judge answers the asks of
    all metrics together, so `judge_s` is each round's time shared out by the tokens that were computed
    (prompt without cached ones, and output): the metrics' sum is the run's.
    """

    calls: int = 0
    from_store: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    judge_s: float = 0.0


@dataclass
class Usage:
    """What a run cost. Every count is of this process: an answer from the store costs no tokens."""

    asks: int = 0
    calls: int = 0
    generated: int = 0
    from_store: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    #: Pairs that the verifier computed, the tokens of all their windows, and the claims of a cascade that
    #: its first stage decided or that went to the judge.
    verified: int = 0
    verified_tokens: int = 0
    cascade_decided: int = 0
    cascade_to_judge: int = 0
    embedded: int = 0
    judge_s: float = 0.0
    verifier_s: float = 0.0
    embedder_s: float = 0.0
    #: Rounds that sent something to the judge, of the deepest window of rows.
    rounds: int = 0
    calls_by_prompt: dict[str, int] = field(default_factory=dict)
    #: By metric; "reasons" is what the written reasons cost.
    by_metric: dict[str, Cost] = field(default_factory=dict)
    #: Largest memory in use on the GPU, of all processes, seen at the end of a round; None without a GPU.
    peak_gpu_bytes: int | None = None

    def cost_of(self, label: str) -> Cost:
        """What is charged to a metric so far."""
        cost = self.by_metric.get(label)
        if cost is None:
            cost = self.by_metric[label] = Cost()
        return cost

    def charge_judge(self, seconds: float, computed: Mapping[str, int]) -> None:
        """Add a round's seconds in the judge, shared out by the tokens computed for each metric."""
        self.judge_s += seconds
        total = sum(computed.values())
        for label, n_tokens in computed.items():
            self.cost_of(label).judge_s += seconds * n_tokens / total
