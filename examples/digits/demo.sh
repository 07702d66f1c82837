#!/usr/bin/env bash
# The demo: trains handwritten digits with one chief and three workers on this machine, kills one worker with SIGKILL in the
# middle, and shows that the job comes back from its checkpoint and ends right. `make demo` builds what it needs first.
#
#   VICTIM=worker   who is killed: worker (one of them by chance), any (the chief too), or a name such as worker-2
#   AT_STEP=60      not before this step (and the first committed checkpoint)
#   AT_SECOND=      instead: so many seconds after the processes were started, whatever they do then
#   OUT=build/demo  where the job directory and the reports go
#
# Exit code 0 only when the job succeeded, restarted once, and all ranks hold the same weights.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out=${OUT:-build/demo}
job_dir=$out/job
PATH=$PWD/build/venv/bin:$PATH
export PATH
# TensorFlow's own remarks about this machine (no GPU, instruction sets) would bury the demo's lines.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

rm -rf "$out"
mkdir -p "$out"

python examples/digits/lose_one.py --job-dir "$job_dir" --victim "${VICTIM:-worker}" --at-step "${AT_STEP:-60}" \
    ${AT_SECOND:+--at-second "$AT_SECOND"} \
    > "$out/lost.txt" 2>&1 &
killer=$!
trap 'kill "$killer" 2>/dev/null || true' EXIT

code=0
build/bin/ringmaster run -f examples/digits/trainingjob.yaml --job-dir "$job_dir" --report "$out" || code=$?

# The job is over: whoever still waits for a victim waits in vain.
kill "$killer" 2>/dev/null || true
wait "$killer" 2>/dev/null || true
trap - EXIT
echo
cat "$out/lost.txt"
if [ "$code" != 0 ]; then
    echo "demo: the job ended with $code; the logs of its members are in $job_dir/logs" >&2
    exit 1
fi
if ! grep -q '^demo: killed' "$out/lost.txt"; then
    echo "demo: the job ended before anyone was killed (${AT_SECOND:+AT_SECOND=$AT_SECOND or }AT_STEP=${AT_STEP:-60} is too late for it)" >&2
    exit 1
fi
if ! python examples/digits/check_report.py "$out/report.json"; then
    echo "demo: the report is not what it should be: $out/report.json" >&2
    exit 1
fi
echo "demo: $out/report.json"
echo "demo: $out/report.html (open it in a browser)"
