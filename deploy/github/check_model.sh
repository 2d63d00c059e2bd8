#!/usr/bin/env bash
# What the GitHub Action does, by variables: MODEL, TARGET, DATASET, OPTIONS, BELOW, BENCH. Runs anywhere that has anynpu.
set -euo pipefail
read -r -a options <<<"${OPTIONS:-}"
compiled="${RUNNER_TEMP:-$(mktemp -d)}/$(basename "${MODEL%.onnx}").model"
if [ -n "${DATASET:-}" ]; then
    data=(--dataset "$DATASET")
else
    data=()
    options+=(--dtype fp16)
fi
anynpu check "$MODEL" --target "$TARGET"
anynpu compile "$MODEL" --target "$TARGET" --output "$compiled" "${data[@]}" "${options[@]}"
if [ -n "${BELOW:-}" ]; then
    anynpu compare "$MODEL" "$compiled" "${data[@]}" --top 10 --fail-below "$BELOW"
fi
if [ "${BENCH:-false}" = true ]; then
    anynpu bench "$compiled" --seconds 2
fi
