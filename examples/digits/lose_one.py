#!/usr/bin/env python3
"""The bad luck of the demo: waits until a job trains and has a checkpoint, then ends one training process with SIGKILL.

    lose_one.py --job-dir DIR [--victim worker|any|NAME] [--at-step N | --at-second S] [--timeout SECONDS]

It reads what the runner keeps in the job directory (coordinator.json), takes the victim's process id from there, makes sure
that this process belongs to that job, and kills it. Prints one line that says what it did.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import time


def read(path):
    """A JSON object, or {} when the file is not there yet."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def belongs(pid, uid):
    """Whether a process carries the job's identity in its environment."""
    try:
        return f"RINGMASTER_JOB_UID={uid}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def candidates(report, victim):
    """Members that train now and are what was asked for."""
    members = [m for m in report.get("members", []) if m.get("state") == "Running" and m.get("pid", 0) > 0 and m.get("rank", -1) >= 0]
    if victim == "any":
        return members
    if victim == "worker":
        return [m for m in members if m["member"].startswith("worker-")]
    return [m for m in members if m["member"] == victim]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job-dir", type=pathlib.Path, required=True)
    parser.add_argument("--victim", default="worker", help="worker: one of them; any: the chief too; or a member's name")
    parser.add_argument("--at-step", type=int, default=60, help="not before this step (and the first committed checkpoint)")
    parser.add_argument("--at-second", type=float, help="instead: that long after the processes were started, whatever they do then")
    parser.add_argument("--timeout", type=float, default=1800)
    args = parser.parse_args()

    deadline = time.monotonic() + args.timeout
    started = None
    while time.monotonic() < deadline:
        report = read(args.job_dir / "coordinator.json")
        found = candidates(report, args.victim)
        step = max((m.get("step", -1) for m in found), default=-1)
        if found and started is None:
            started = time.monotonic()
        if args.at_second is None:
            due = step >= args.at_step and report.get("checkpoint_step", -1) >= 0
        else:
            due = started is not None and time.monotonic() - started >= args.at_second
        if found and due:
            member = random.choice(found)
            if belongs(member["pid"], report["job_uid"]):
                os.kill(member["pid"], signal.SIGKILL)
                name, rank, pid = member["member"], member["rank"], member["pid"]
                print(f"demo: killed {name} (rank {rank}, process {pid}) with SIGKILL at step {max(step, 0)}", flush=True)
                return 0
        time.sleep(0.02)
    moment = f"step {args.at_step} with a committed checkpoint" if args.at_second is None else f"second {args.at_second:g}"
    print(f"demo: nobody was killed: no {args.victim} came to {moment}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
