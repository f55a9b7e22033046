#!/usr/bin/env bash
# Run every check and benchmark that needs a GPU, on a machine that has one and a filled shelf, and print one table.
# Usage: scripts/gpu_check.sh [JUDGE] [EMBEDDER]    (default: qwen2.5-7b-instruct snowflake-arctic-embed-l-v2.0)
# Everything runs even where a part fails; the exit status is 1 then. Logs: runs/gpu_check/.
set -uo pipefail
cd "$(dirname "$0")/.."
judge=${1:-qwen2.5-7b-instruct} embedder=${2:-snowflake-arctic-embed-l-v2.0}
python=.venv/bin/python logs=runs/gpu_check
mkdir -p "$logs"

[ -x "$python" ] || { echo "error: no .venv here: scripts/setup.sh dev" >&2; exit 2; }
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "error: torch sees no GPU here" >&2
    exit 2
fi
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader

names=() states=() seconds=()
check() { # NAME COMMAND...
    local name=$1 started=$SECONDS
    shift
    if "$@" >"$logs/$name.log" 2>&1; then states+=(passed); else states+=("FAILED ($?)"); fi
    names+=("$name") seconds+=($((SECONDS - started)))
    echo "$name: ${states[-1]}"
}

check tests "$python" -m pytest -q -rs
check example "$python" -m offline_judge evaluate offline_judge/examples/rows.jsonl \
    --judge "$judge" --embedder "$embedder" --max-unscored 0.25 --out "$logs/runs"
check example-served "$python" -m offline_judge evaluate offline_judge/examples/rows.jsonl \
    --judge "$judge" --serve --embedder "$embedder" --max-unscored 0.25 --out "$logs/runs-served"
check determinism "$python" benchmarks/determinism.py --judge "$judge" --rows 8
check prefix-cache "$python" benchmarks/prefix_cache.py --judge "$judge" --rows 64
check numeric-core "$python" benchmarks/numeric_core.py --rows-scale 0.1
if [ -n "${DATA_FOLDER:-}" ]; then
    check throughput "$python" benchmarks/throughput.py --data-folder "$DATA_FOLDER" --judge "$judge" \
        --embedder "$embedder" --rows 50 --skip-ragas
fi

printf '\n%-16s %-12s %8s\n' check state seconds
status=0
for index in "${!names[@]}"; do
    printf '%-16s %-12s %8d\n' "${names[$index]}" "${states[$index]}" "${seconds[$index]}"
    [ "${states[$index]}" = passed ] || status=1
done
for name in determinism prefix-cache numeric-core throughput; do
    [ -s "$logs/$name.log" ] && printf '\n%s\n' "$name" && tail -n 12 "$logs/$name.log"
done
exit "$status"
