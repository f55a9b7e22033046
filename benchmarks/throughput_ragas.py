"""Part (c) of throughput.py: runs inside the environment that holds RAGAS, and imports nothing of ours."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from ragas import EvaluationDataset, RunConfig, evaluate
from ragas.embeddings import LangchainEmbeddingsWrapper
from ragas.llms import LangchainLLMWrapper
from ragas.metrics import (
    FactualCorrectness,
    Faithfulness,
    LLMContextPrecisionWithReference,
    LLMContextRecall,
    NoiseSensitivity,
    ResponseRelevancy,
)

ROWS, JUDGE, MODEL, EMBEDDER = sys.argv[1:]


def main() -> None:
    rows = json.loads(Path(ROWS).read_text())
    columns = ("user_input", "response", "reference", "retrieved_contexts")
    dataset = EvaluationDataset.from_list([{name: row[name] for name in columns} for row in rows])
    llm = ChatOpenAI(
        model=MODEL,
        base_url=JUDGE,
        api_key="none",
        temperature=0,
        timeout=600,
        max_retries=1,
        max_tokens=1024,
    )
    embeddings = OpenAIEmbeddings(
        model="e", base_url=EMBEDDER, api_key="none", check_embedding_ctx_length=False
    )
    result = evaluate(
        dataset,
        [
            LLMContextPrecisionWithReference(),
            LLMContextRecall(),
            Faithfulness(),
            ResponseRelevancy(),
            FactualCorrectness(),
            NoiseSensitivity(),
            NoiseSensitivity(mode="irrelevant"),
        ],
        llm=LangchainLLMWrapper(llm),
        embeddings=LangchainEmbeddingsWrapper(embeddings),
        run_config=RunConfig(timeout=1800, max_workers=16),
        show_progress=False,
    )
    values = [value for row in result.scores for value in row.values()]
    print(json.dumps({"unscored": sum(map(math.isnan, values)) / len(values), "values": len(values)}))


if __name__ == "__main__":
    main()
