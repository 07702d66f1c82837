#!/usr/bin/env python3
"""How long a group takes to train again after one of its processes was killed: in place, without a framework's import time.

bench_recovery.py OUT.json: a chief and two workers run tests/programs/trainer.c, RUNS times; rank 1 kills itself once a run.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from table import finish, row

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = 5


def manifest():
    words = [str(ROOT / "build/tests/programs/trainer"), "60", "5", "1", "22"]

    def role(replicas):
        container = {"name": "trainer", "image": "local", "command": words}
        return {"replicas": replicas, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}

    return {
        "apiVersion": "ringmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "recovery"},
        "spec": {"replicaSpecs": {"Chief": role(1), "Worker": role(2)}, "checkpoint": {"everySteps": 5}},
    }


def one_run(work):
    job = work / "job.json"
    job.write_text(json.dumps(manifest()))
    command = [str(ROOT / "build/bin/ringmaster"), "run", "-f", str(job), "--job-dir", str(work / "job"), "--report", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"the job ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads((work / "report.json").read_text())


def main():
    reports = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="rm-bench-") as work:
            reports.append(one_run(pathlib.Path(work)))
    started = statistics.median(r["recovery_without_startup_seconds"] for r in reports)
    training = statistics.median(r["recovery_seconds"] for r in reports)
    formed = statistics.median(r["rounds"][-1]["form_seconds"] for r in reports)
    rows = [
        row("killed process -> all processes started again", "s", started, "<= 2", started <= 2),
        row("killed process -> first new step on every rank", "s", training, "<= 2", training <= 2),
        row("ring re-formed, self-test included", "s", formed, "<= 1", formed <= 1),
    ]
    return finish(rows, sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
