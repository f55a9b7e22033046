#!/usr/bin/env bash
# Set up everything on a fresh machine and run the checks and tests.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh dev
for model in smollm2-135m-instruct all-minilm-l6-v2; do
    .venv/bin/python scripts/shelf.py add "$model"
done
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/pytest "$@"
