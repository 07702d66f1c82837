#!/bin/sh
# fuzz.sh BUILD SECONDS [TARGET]: runs libFuzzer on each target (or one). What it finds new is kept in BUILD/corpus/TARGET,
# an input that breaks a target in BUILD/found/; the seeds in tests/fuzz/corpus are read and never written.
set -eu
build=$1 seconds=$2 only=${3:-}

ran=0 failed=
for program in "$build"/tests/fuzz/fuzz_*; do
    [ -x "$program" ] || continue
    target=${program##*/fuzz_}
    case $target in *.d | *.o) continue ;; esac
    [ -z "$only" ] || [ "$only" = "$target" ] || continue
    seeds=tests/fuzz/corpus/$target
    mkdir -p "$build/corpus/$target" "$build/found"
    echo "== $target: $seconds s"
    ran=$((ran + 1))
    "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$build/found/$target-" "$build/corpus/$target" "$seeds" || failed="$failed $target"
done
if [ "$ran" = 0 ]; then
    echo "no fuzz target${only:+ named $only}; there are: $(cd tests/fuzz && echo fuzz_*.c | sed 's/fuzz_//g; s/\.c//g')" >&2
    exit 1
fi
if [ -n "$failed" ]; then
    echo "broken:$failed; the inputs are in $build/found, run the target with the file's path to see it again" >&2
    exit 1
fi
echo "fuzz: $ran targets, nothing found"
