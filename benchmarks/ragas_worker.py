"""RAGAS scores rows: runs inside the environment that holds RAGAS, and imports nothing of ours.

    python ragas_worker.py TASK.json

The task names rows, metrics, judge, model and embedder; the last line of the output is one JSON list of
scores for each metric, null where RAGAS has none. See `ragas_peer.py`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from ragas import EvaluationDataset, RunConfig, evaluate
from ragas.embeddings import LangchainEmbeddingsWrapper
from ragas.llms import LangchainLLMWrapper
from ragas.metrics import (
    ContextRelevance,
    FactualCorrectness,
    Faithfulness,
    LLMContextPrecisionWithReference,
    LLMContextRecall,
    NoiseSensitivity,
    ResponseRelevancy,
)

#: RAGAS's metrics by our names. Its context relevance is not the paper's, which it no longer has.
METRICS = {
    "context_precision": LLMContextPrecisionWithReference,
    "context_recall": LLMContextRecall,
    "context_relevance": ContextRelevance,
    "factual_correctness": FactualCorrectness,
    "factual_correctness[mode=recall]": lambda: FactualCorrectness(mode="recall"),
    "faithfulness": Faithfulness,
    "noise_sensitivity": NoiseSensitivity,
    "noise_sensitivity[mode=irrelevant]": lambda: NoiseSensitivity(mode="irrelevant"),
    "response_relevancy": ResponseRelevancy,
}


def main() -> None:
    task: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    llm = ChatOpenAI(
        model=task["model"],
        base_url=task["judge"],
        api_key="none",
        temperature=0,
        timeout=600,
        max_retries=1,
        max_tokens=1024,
    )
    embeddings = OpenAIEmbeddings(
        model="e", base_url=task["embedder"], api_key="none", check_embedding_ctx_length=False
    )
    metrics = [METRICS[name]() for name in task["metrics"]]
    result = evaluate(
        EvaluationDataset.from_list(task["rows"]),
        metrics,
        llm=LangchainLLMWrapper(llm),
        embeddings=LangchainEmbeddingsWrapper(embeddings),
        run_config=RunConfig(timeout=1800, max_workers=16),
        show_progress=False,
    )
    scores = {}
    for place, name in enumerate(task["metrics"]):
        # RAGAS names the columns itself, in the order of the metrics.
        values = [list(row.values())[place] for row in result.scores]
        scores[name] = [None if math.isnan(value) else float(value) for value in values]
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
