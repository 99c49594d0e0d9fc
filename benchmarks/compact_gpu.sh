#!/usr/bin/env bash
# Our compact models on one GPU, all in one go: small is pre-trained, then it and mini are measured on every task.
#
#     benchmarks/compact_gpu.sh DATA TASKS OUT [MINUTES [MINUTES_TO_MEASURE [SETTING...]]]
#
# DATA is what `bertworks prepare` made, TASKS holds the tasks' own files. Small models leave most of a GPU idle, so 16
# processes share it, best under NVIDIA's MPS. Started again it goes on where it was; results are in OUT/*.json.
set -euo pipefail
data=$1 tasks=$2 out=$3 minutes=${4:-20} to_measure=${5:-1000}
settings=("${@:6}") python=${PYTHON:-python3} here=$(dirname "$0")
mkdir -p "$out"
"$python" -m bertworks pretrain "${RECIPE:-small-20min}" --data "$data" --out "$out/small" --resume train.max_minutes="$minutes" \
    train.eval_batches=16
if [ "$out/small/model/model.safetensors" -nt "$out/small-bf16/model.safetensors" ]; then
    rm -rf "$out/small-bf16"
    "$python" -m bertworks convert "$out/small" "$out/small-bf16" --dtype bfloat16
fi
if command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d; then
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
trap 'kill $(jobs -p) 2> /dev/null; wait; exit 143' TERM INT

measure() { # NAME MODEL
    "$python" "$here/compact.py" "$2" --name "$1" --data "$tasks" --out "$out/$1-tasks" --json "$out/$1.json" --jobs 8 \
        --init model random --minutes "$to_measure" ${settings[@]+--set "${settings[@]}"} ${QUICK:+--quick}
}
measure small "$out/small-bf16" &
measure mini mini &
status=0
for job in $(jobs -p); do wait "$job" || status=1; done
exit $status
