#!/usr/bin/env python3
"""One whole job with every program of ours under a checker: valgrind, or a build with the thread or address sanitizer.

    tools/checked-job.py valgrind|tsan|asan RESULT.json

The job: a chief and two workers run tests/programs/trainer.c, which reduces, reports and saves; one worker is killed with
SIGKILL in the first round, the group restarts in place and resumes. RESULT.json gets [{"name", "ok", "detail"}]: the job's
end and what the checker says of each program. Exit code 0 when all is well.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ["ringmaster", "ringmaster-sidecar", "ringmaster-launch", "trainer"]
STEPS, SAVE_EVERY, KILL_RANK, KILL_STEP = 40, 5, 1, 17

VALGRIND = [
    "valgrind",
    "--trace-children=yes",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect,possible",
    "--errors-for-leak-kinds=definite,indirect,possible",
    "--error-exitcode=99",
]


def manifest(trainer):
    words = [str(trainer), str(STEPS), str(SAVE_EVERY), str(KILL_RANK), str(KILL_STEP)]

    def role(replicas):
        container = {"name": "trainer", "image": "local", "command": words}
        return {"replicas": replicas, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}

    return {
        "apiVersion": "ringmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "checked"},
        "spec": {
            "replicaSpecs": {"Chief": role(1), "Worker": role(2)},
            "checkpoint": {"enabled": True, "everySteps": SAVE_EVERY},
            "health": {"peerTimeoutMilliseconds": 20000},  # under a checker everyone is slow, and nobody is lost for that
        },
    }


def prepare(kind, work):
    """The command in front of the runner, and its environment."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGMASTER_")}
    if kind == "valgrind":
        return [*VALGRIND, f"--log-file={work}/log.%p"], env
    path = f"log_path={work}/log"
    if kind == "tsan":
        env["TSAN_OPTIONS"] = f"{path}:exitcode=66:second_deadlock_stack=1"
    else:
        env["ASAN_OPTIONS"] = f"{path}:detect_leaks=1"
        env["UBSAN_OPTIONS"] = f"{path}:print_stacktrace=1:halt_on_error=1"
    return [], env


def valgrind_verdict(logs, program):
    """(ok, detail) from the logs whose command is this program. One without a summary was killed: only the trainer may be."""
    mine = [t for t in logs if re.search(rf"Command: \S*/{re.escape(program)}(\s|$)", t)]
    if not mine:
        return False, "it did not run under valgrind"
    bad = [t for t in mine if "ERROR SUMMARY: 0 errors" not in t]
    if program == "trainer":
        bad = [t for t in bad if not killed_in_the_middle(t)]
    return not bad, "\n".join(bad)


def killed_in_the_middle(text):
    """A trainer that a signal ended has had no time to join its thread, whose stack is then "possibly lost", or to sum up."""
    summary = re.search(r"ERROR SUMMARY: (\d+) errors", text)
    return summary is None or int(summary[1]) == len(re.findall(r"are possibly lost in loss record", text))


def sanitizer_verdict(logs, program):
    """(ok, detail): a log exists only for a finding, and names the program in its stack frames. One that names none fails all."""
    bad = [t for t in logs if program in named(t) or not named(t)]
    return not bad, "\n".join(bad)


def named(text):
    return set(re.findall(r"/(?:bin|programs)/([\w-]+)", text)) & set(PROGRAMS)


def last_lines(path, count=15):
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:]) if path.exists() else ""


def check_job(work, code, output, rows):
    """The job's own end: a checker that breaks what it looks at has shown nothing."""
    report_path = work / "report.json"
    report = json.loads(report_path.read_text()) if report_path.exists() else {}
    logs = "\n".join(f"-- {p.parent.name}/{p.name}\n{last_lines(p)}" for p in sorted(work.glob("job/logs/*/*.log")))
    ok = code == 0 and report.get("succeeded") is True
    rows.append({"name": "the job succeeds", "ok": ok, "detail": "" if ok else f"exit code {code}\n{output}\n{logs}"})
    restarts = report.get("restarts")
    rows.append({"name": "it restarts once", "ok": restarts == 1, "detail": f"restarts = {restarts}"})
    resumed = (report.get("failures") or [{}])[0].get("resume_step")
    good = isinstance(resumed, int) and 0 < resumed <= KILL_STEP
    rows.append({"name": "it resumes from a checkpoint", "ok": good, "detail": f"resume_step = {resumed}"})


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("valgrind", "tsan", "asan"):
        print(__doc__, file=sys.stderr)
        return 2
    kind, result = sys.argv[1], pathlib.Path(sys.argv[2])
    build = ROOT / "build" / kind
    work = build / "job"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    job = work / "job.json"
    job.write_text(json.dumps(manifest(build / "tests/programs/trainer"), indent=2))

    prefix, env = prepare(kind, work)
    command = [*prefix, str(build / "bin/ringmaster"), "run", "-f", str(job), "--job-dir", str(work / "job"), "--report", str(work)]
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=1400)
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as e:
        code, output = 124, f"longer than {e.timeout:g} s\n{(e.stdout or b'').decode(errors='replace')}"

    rows = []
    check_job(work, code, output, rows)
    logs = [p.read_text(errors="replace") for p in sorted(work.glob("log.*"))]
    verdict = valgrind_verdict if kind == "valgrind" else sanitizer_verdict
    for program in PROGRAMS:
        ok, detail = verdict(logs, program)
        rows.append({"name": f"{kind}: {program}", "ok": ok, "detail": detail})
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps(rows, indent=2))
    return 0 if all(r["ok"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
