#!/usr/bin/env bash
# `small` on one GPU, all in one go: pre-trained, then measured on every task.
#
#     benchmarks/compact_gpu.sh DATA TASKS OUT [MINUTES [MINUTES_TO_MEASURE [SETTING...]]]
#
# DATA is what `bertworks prepare` made, TASKS holds the tasks' own files, each SETTING is one of pre-training. In the
# environment: FROM, a model to start from, such as `mini`, which is widened then; RECIPE; RANDOM_TASKS, those that are
# also measured from random initialisation, one seed each. Small models leave most of a GPU idle, so 16 processes share
# it, best under NVIDIA's MPS. Started again it goes on where it was; results are in OUT/results.json.
set -euo pipefail
data=$1 tasks=$2 out=$3 minutes=${4:-20} to_measure=${5:-1000}
settings=("${@:6}") python=${PYTHON:-python3} here=$(dirname "$0") from=${FROM:-}
read -ra random_tasks <<< "${RANDOM_TASKS-squad1 squad2}"
mkdir -p "$out"
"$python" -m bertworks pretrain "${RECIPE:-small-20min}" --data "$data" --out "$out/small" --resume ${from:+--from "$from"} \
    train.max_minutes="$minutes" train.eval_batches=16 ${settings[@]+"${settings[@]}"}
if [ "$out/small/model/model.safetensors" -nt "$out/small-bf16/model.safetensors" ]; then
    rm -rf "$out/small-bf16"
    "$python" -m bertworks convert "$out/small" "$out/small-bf16" --dtype bfloat16
fi
if command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d; then
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
trap 'kill $(jobs -p) 2> /dev/null; wait; exit 143' TERM INT

measure() { # INIT JOBS OPTION...
    "$python" "$here/compact.py" "$out/small-bf16" --name small --data "$tasks" --out "$out/from-$1" --json "$out/results.json" \
        --init "$1" --jobs "$2" --minutes "$to_measure" "${@:3}" ${QUICK:+--quick}
}
measure model 14 &
if [ ${#random_tasks[@]} -gt 0 ]; then
    measure random 2 --seeds 1 --tasks "${random_tasks[@]}" &
fi
status=0
for job in $(jobs -p); do wait "$job" || status=1; done
exit $status
