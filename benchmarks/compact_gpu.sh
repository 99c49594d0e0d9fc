#!/usr/bin/env bash
# A model on every English task, measured on one GPU in one go.
#
#     benchmarks/compact_gpu.sh MODEL TASKS OUT [MINUTES [OPTION...]]
#
# TASKS holds the tasks' own files; each OPTION is one of compact.py. In the environment: ONLY, tasks in the order in
# which they are begun, instead of all; RANDOM_TASKS, those also measured from random initialisation, one seed each.
# Small models leave most of a GPU idle, so 12 processes share it, best under NVIDIA's MPS; 16 of `small` kept an H200
# busy all the time. Started again it goes on where it was; results are in OUT/results.json.
set -euo pipefail
model=$1 tasks=$2 out=$3 minutes=${4:-1000} options=("${@:5}") python=${PYTHON:-python3} here=$(dirname "$0")
read -ra only <<< "${ONLY-}"
read -ra random_tasks <<< "${RANDOM_TASKS-squad1 squad2}"
mkdir -p "$out"
if command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d; then
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
trap 'kill $(jobs -p) 2> /dev/null; wait; exit 143' TERM INT

measure() { # INIT JOBS OPTION...
    "$python" "$here/compact.py" "$model" --data "$tasks" --out "$out/from-$1" --json "$out/results.json" \
        --init "$1" --jobs "$2" --minutes "$minutes" "${@:3}" ${options[@]+"${options[@]}"}
}
measure model 10 ${only[@]+--tasks "${only[@]}"} &
if [ ${#random_tasks[@]} -gt 0 ]; then
    measure random 2 --seeds 1 --tasks "${random_tasks[@]}" &
fi
status=0
for job in $(jobs -p); do wait "$job" || status=1; done
exit $status
