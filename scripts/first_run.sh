#!/usr/bin/env bash
# Set up everything on a fresh machine and score the example rows: table, and evidence of the worst row.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
for model in qwen2.5-coder-1.5b-instruct multilingual-e5-small; do
    .venv/bin/python scripts/shelf.py add "$model"
done
.venv/bin/offline-judge evaluate offline_judge/examples/rows.jsonl \
    --judge qwen2.5-coder-1.5b-instruct --embedder multilingual-e5-small \
    --max-unscored 0.25 --show-worst "$@"  # an evasive answer makes no claims, so it has no faithfulness
