#!/usr/bin/env bash
# demo-soak.sh [N]: runs the demo N times (20), each time with another victim, the chief included, at another time, the start-up
# included. One line a run, then the count. Exit code 0 only when every run ended right. SEED=n repeats a series; LATEST is the
# latest moment, in seconds after the processes were started.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${1:-20}
RANDOM=${SEED:-$$}
latest=${LATEST:-30}
members=(chief-0 worker-0 worker-1 worker-2)
out=build/demo-soak
mkdir -p "$out"

good=0
for ((i = 1; i <= runs; i++)); do
    victim=${members[RANDOM % 4]}
    at_second=$((RANDOM % latest)).$((RANDOM % 10))
    began=$SECONDS
    if VICTIM=$victim AT_SECOND=$at_second OUT=$out/$i examples/digits/demo.sh > "$out/$i.log" 2>&1; then
        good=$((good + 1))
        verdict=ok
    else
        verdict=FAILED
    fi
    figures=$(grep -E '^  (ok |BAD) (accuracy|recovery_seconds|steps_lost)' "$out/$i.log" | sed 's/^ *[A-Za-z]* *//' | tr '\n' ' ' || true)
    step=$(sed -n 's/^demo: killed .* at \(step [0-9]*\)$/\1/p' "$out/$i.log")
    echo "run $i: $verdict $victim after $at_second s (${step:-not killed}), $((SECONDS - began)) s  $figures"
done
echo "$good of $runs"
[ "$good" = "$runs" ]
