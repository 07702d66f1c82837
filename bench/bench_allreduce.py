#!/usr/bin/env python3
"""The all-reduce against OpenMPI and Gloo: one table of all of them, at every size, with 2 and 4 ranks on this machine.

bench_allreduce.py OUT.json [--ranks 2,4] [--sizes 4,4096,...] [--repeat 3]

Everyone is measured in turn, size by size, so that what else the machine does meets all alike; of the repetitions the median
counts. `engine` is the ring alone, from sidecar to sidecar, which is what a peer without a sidecar has to be held against: over
TCP, and through memory as the local runner has it. `process` goes from training process to training process (through memory).
Processor time is that of all processes of a contestant from start to end, so what starting costs is in it, for each GB of a rank's
tensor.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys

from table import finish, row

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "build/bench"
SMALL = 64 << 10
SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "lo"]


def run(command, timeout_s, environment):
    """What it wrote, and the processor seconds of it and its children; None: it did not end in time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout_s,
                              env={**os.environ, **environment})
    except subprocess.TimeoutExpired:
        return None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loop(command, **environment):
    """Median in microseconds of one of the loops in bench/allreduce, and processor seconds for a GB; None: it did not end in time."""
    ended = run(command, 60, environment)
    if ended is None:
        return None
    done, cpu = ended
    done.check_returncode()
    size, measured, median = done.stdout.split()[:3]
    return float(median), cpu / (int(size) * (int(measured) + int(measured) // 5 + 1) / 1e9)


def process(ranks, size, arena):
    iterations, warmup = min(max((1 << 30) // size, 5), 1000), 5
    command = [ROOT / "build/bin/ringmaster", "bench", "allreduce", "--ranks", ranks, "--min", size, "--max", size, "--percentiles",
               "--iterations", iterations, "--warmup", warmup, *(["--arena"] if arena else [])]
    ended = run(command, 180, {})
    if ended is None:
        return None
    done, cpu = ended
    lines = [line.split() for line in done.stdout.splitlines()]
    found = [fields for fields in lines if len(fields) == 10 and fields[0] == str(size)]
    if done.returncode != 0 or not found or found[0][7] != "0":
        sys.exit(f"ringmaster bench allreduce failed at {size} bytes:\n{done.stdout}{done.stderr}")
    return float(found[0][8]), cpu / (size * (iterations + warmup) / 1e9)


CONTESTANTS = {
    "engine": lambda n, size: loop([BENCH / "ring", n, size]),
    "engine in memory": lambda n, size: loop([BENCH / "ring", n, size], RING_MEMORY_DIR="/dev/shm"),
    "process": lambda n, size: process(n, size, False),
    "process in arena": lambda n, size: process(n, size, True),
    "OpenMPI TCP": lambda n, size: loop([*MPI, "--mca", "btl", "tcp,self", "-np", n, BENCH / "openmpi", size]),
    "OpenMPI shared memory": lambda n, size: loop([*MPI, "--mca", "btl", "vader,self", "-np", n, BENCH / "openmpi", size]),
    "Gloo": lambda n, size: loop([BENCH / "gloo", n, size]),
}


def measure(ranks, size, repeat):
    """Median microseconds, and processor seconds for a GB, by contestant."""
    figures = {name: [] for name in CONTESTANTS}
    for _ in range(repeat):
        for name, contestant in CONTESTANTS.items():
            measured = contestant(ranks, size)
            if measured is not None:
                figures[name].append(measured)
    there = {name: list(zip(*measured)) for name, measured in figures.items() if measured}
    return tuple({name: statistics.median(columns[i]) for name, columns in there.items()} for i in range(2))


def text(size):
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << bits:
            return f"{size >> bits} {unit}"
    return f"{size} B"


def busbw(ranks, size, us):
    return 2 * (ranks - 1) / ranks * size / us / 1e3


def latency_row(ranks, size, who, us, peer, goal):
    if who not in us or peer not in us:
        return []
    ratio = us[who] / us[peer]
    return [row(f"{who}, {ranks} ranks, {text(size)}, against {peer}", "us", us[who], f"<= {goal}x", ratio <= goal, peer, us[peer])]


def bandwidth_row(ranks, size, who, us, peers, goal):
    there = [p for p in peers if p in us]
    if who not in us or not there:
        return []
    best = min(there, key=lambda p: us[p])
    ours, theirs = busbw(ranks, size, us[who]), busbw(ranks, size, us[best])
    return [row(f"{who}, {ranks} ranks, {text(size)}, against {best}", "GB/s", ours, f">= {goal}x", ours >= goal * theirs, best, theirs)]


def cost_row(ranks, size, who, cpu):
    if who not in cpu or "Gloo" not in cpu:
        return []
    ratio = cpu[who] / cpu["Gloo"]
    return [row(f"{who}, {ranks} ranks, {text(size)}, processor time", "s/GB", cpu[who], "<= 1x", ratio <= 1, "Gloo", cpu["Gloo"])]


def rows_of(ranks, size, us, cpu):
    tcp = ["OpenMPI TCP", "Gloo"]
    rows = []
    if size <= SMALL:
        rows += latency_row(ranks, size, "process", us, "Gloo", 1.0)
        if os.cpu_count() >= 2 * ranks:
            rows += latency_row(ranks, size, "process", us, "OpenMPI TCP", 1.5)
    if size >= SMALL:
        rows += bandwidth_row(ranks, size, "engine", us, tcp, 1.3 if size >= 16 << 20 else 1.0)
        rows += bandwidth_row(ranks, size, "engine in memory", us, ["OpenMPI shared memory"], 1.0)
    if size >= 1 << 20:
        rows += bandwidth_row(ranks, size, "process", us, tcp, 1.0)
        rows += bandwidth_row(ranks, size, "process in arena", us, ["engine in memory"], 0.95)
        rows += cost_row(ranks, size, "engine", cpu) + cost_row(ranks, size, "process", cpu)
    return rows


def show(ranks, size, us):
    cells = "".join(f"{us[name]:>12.1f}" if name in us else f"{'-':>12}" for name in CONTESTANTS)
    print(f"{ranks:>5}  {text(size):>8}{cells}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default=",".join(str(size) for size in SIZES))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rows = []
    print("median time of one all-reduce of float32, in microseconds")
    print(f"ranks      size{''.join(f'{name[-11:]:>12}' for name in CONTESTANTS)}")
    for ranks in [int(n) for n in options.ranks.split(",")]:
        for size in [int(n) for n in options.sizes.split(",")]:
            us, cpu = measure(ranks, size, options.repeat)
            show(ranks, size, us)
            rows += rows_of(ranks, size, us, cpu)
    print()
    return finish(rows, options.out)


if __name__ == "__main__":
    sys.exit(main())
