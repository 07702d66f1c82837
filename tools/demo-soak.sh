#!/usr/bin/env bash
# demo-soak.sh [N]: runs the demo N times (20), each time with another victim, the chief included, at another step. One line a
# run, then the count. Exit code 0 only when every run ended right. SEED=n repeats a series; MAX_STEP is the latest step.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${1:-20}
RANDOM=${SEED:-$$}
max_step=${MAX_STEP:-200}
members=(chief-0 worker-0 worker-1 worker-2)
out=build/demo-soak
mkdir -p "$out"

good=0
for ((i = 1; i <= runs; i++)); do
    victim=${members[RANDOM % 4]}
    at_step=$((1 + RANDOM % max_step))
    began=$SECONDS
    if VICTIM=$victim AT_STEP=$at_step OUT=$out/$i examples/digits/demo.sh > "$out/$i.log" 2>&1; then
        good=$((good + 1))
        verdict=ok
    else
        verdict=FAILED
    fi
    figures=$(grep -E '^  (ok |BAD) (accuracy|recovery_seconds|steps_lost)' "$out/$i.log" | sed 's/^ *[A-Za-z]* *//' | tr '\n' ' ' || true)
    echo "run $i: $verdict $victim at step $at_step, $((SECONDS - began)) s  $figures"
done
echo "$good of $runs"
[ "$good" = "$runs" ]
