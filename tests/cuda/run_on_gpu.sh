#!/usr/bin/env bash
# Everything worth doing on a machine with a GPU, in less than 8 minutes; one table at the end.
#
#   tests/cuda/run_on_gpu.sh                    makes an environment (.gpu-venv) and installs into it
#   PYTHON=/path/to/python tests/cuda/run_on_gpu.sh     uses one that has turnout-cuda and pytest
#   CUDA=12 tests/cuda/run_on_gpu.sh            for drivers of CUDA 12
set -u
cd "$(dirname "$0")/../.."

if [ -z "${PYTHON:-}" ]; then
    python3 -m venv .gpu-venv
    PYTHON=$PWD/.gpu-venv/bin/python
    "$PYTHON" -m pip install --quiet --upgrade pip
    "$PYTHON" -m pip install --quiet . ./plugins/cpu "./plugins/cuda[cuda${CUDA:-13}]" \
        hypothesis cloudpickle mpmath
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export TURNOUT_CACHE_DIR=$results/cache TURNOUT_REQUIRE_GPU=1 PYTHONDONTWRITEBYTECODE=1
status=0

# step NAME SECONDS COMMAND...: runs a command with a limit; its last line goes into the table.
step() {
    local name=$1 limit=$2 started=$SECONDS outcome
    shift 2
    printf '\n==== %s: %s\n' "$name" "$*"
    timeout "$limit" "$@" 2>&1 | tee "$results/output"
    outcome=${PIPESTATUS[0]}
    [ "$outcome" = 0 ] || status=1
    printf '| %s | %s | %d s | %s |\n' "$name" \
        "$([ "$outcome" = 0 ] && echo passed || echo "FAILED ($outcome)")" \
        $((SECONDS - started)) "$(grep -v '^ *$' "$results/output" | tail -1 | tr '|' '/')" \
        >>"$results/table"
}

step driver 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
step doctor 30 "$PYTHON" -m turnout doctor
step "tests on the GPU" 120 "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu tests/cuda
step "conformance suite" 240 "$PYTHON" -m turnout check cuda
step measurements 60 "$PYTHON" tests/cuda/measure.py "$results/measurements"

printf '\n| step | outcome | time | last line |\n|---|---|---|---|\n'
cat "$results/table"
[ ! -f "$results/measurements" ] || cat "$results/measurements"
exit $status
