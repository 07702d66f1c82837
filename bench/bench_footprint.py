#!/usr/bin/env python3
"""What a sidecar costs while a job runs that uses no collective: memory, idle CPU, and the time until it listens.

bench_footprint.py OUT.json
"""

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from table import finish, row

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIDECARS = 4
IDLE_SECONDS = 10
MARK = "RM_BENCH_MARK"


def sidecars(mark):
    """Process ids of the sidecars that this run has started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            ours = entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if ours and (entry / "comm").read_text().strip() == "ringmaster-side":  # the kernel keeps 15 characters
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid):
    """Private and shared-by-file memory, without what is shared with clients."""
    kept = 0
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssFile:")):
            kept += int(line.split()[1])
    return kept / 1024


def start_ms():
    """Time until a sidecar answers `--version`: exec, loader, options. Median of 20."""
    times = []
    for _ in range(20):
        began = time.monotonic()
        subprocess.run([str(ROOT / "build/bin/ringmaster-sidecar"), "--version"], capture_output=True, check=True)
        times.append((time.monotonic() - began) * 1000)
    return statistics.median(times)


def main():
    mark = f"{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="rm-bench-") as work:
        command = [str(ROOT / "build/bin/ringmaster"), "run", "-np", str(SIDECARS), "--job-dir", f"{work}/job", "--", "sleep", "600"]
        runner = subprocess.Popen(command, env={**os.environ, MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while len(sidecars(mark)) < SIDECARS and time.monotonic() < deadline:
                time.sleep(0.1)
            pids = sidecars(mark)
            if len(pids) != SIDECARS:
                sys.exit(f"{len(pids)} sidecars run, not {SIDECARS}")
            time.sleep(2)  # the forming is not idleness
            before = {pid: cpu_seconds(pid) for pid in pids}
            time.sleep(IDLE_SECONDS)
            cpu = max((cpu_seconds(pid) - before[pid]) / IDLE_SECONDS * 100 for pid in pids)
            memory = max(memory_mb(pid) for pid in pids)
        finally:
            runner.send_signal(signal.SIGTERM)
            runner.wait(30)
    started = start_ms()
    rows = [
        row("sidecar memory without buffers, largest of 4", "MB", memory, "<= 30", memory <= 30),
        row("sidecar CPU when idle, busiest of 4", "%", cpu, "<= 0.5", cpu <= 0.5),
        row("sidecar start", "ms", started, "<= 50", started <= 50),
    ]
    return finish(rows, sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
