"""ringmaster run, from outside: what it prints, what it leaves behind, how it ends. No framework: sh and Python's own modules."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import PATIENCE_S

SH = "/bin/sh"
SELF = "$$$$"  # Kubernetes reads "$$" in a command as "$"


def status_of(job_dir):
    return json.loads((job_dir / "status.json").read_text())


def report_of(job_dir):
    return json.loads((job_dir / "report.json").read_text())


def state_of(job_dir, member):
    return json.loads((job_dir / "pods" / member / "state.json").read_text())


def log_of(job_dir, member, attempt=1):
    return (job_dir / "logs" / member / f"{attempt}.log").read_text()


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shared_memory_of(job_dir):
    uid = json.loads((job_dir / "job.json").read_text())["metadata"]["uid"]
    return pathlib.Path(f"/dev/shm/ringmaster-{uid}")


@pytest.fixture(autouse=True)
def no_memory_left(job_dir):
    """Jobs that a test leaves to be resumed keep memory for their slots: it is given back here."""
    yield
    if (job_dir / "job.json").exists():
        subprocess.run(["rm", "-rf", str(shared_memory_of(job_dir))], check=True)


def running(job_dir, *members):
    """True when all the members' training processes run."""

    def look():
        try:
            return all(state_of(job_dir, m)["trainer_pid"] > 0 for m in members)
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    return look


# ---- ends ------------------------------------------------------------------------------------------------------------------


def test_a_job_that_succeeds(ringmaster, write_job, job_dir, tmp_path):
    job = write_job({"Chief": (1, [SH, "-c", "echo chief $RINGMASTER_RANK"]), "Worker": (2, [SH, "-c", "echo worker $RINGMASTER_RANK"])})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir, "--report", tmp_path / "report")
    assert result.returncode == 0, result.stderr
    assert "test Succeeded in" in result.stdout
    assert "[worker-1] worker 2" in result.stdout
    assert "\033" not in result.stdout
    assert status_of(job_dir)["phase"] == "Succeeded"
    assert log_of(job_dir, "chief-0") == "chief 0\n"
    assert oct((job_dir / "key").stat().st_mode & 0o777) == "0o600"
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert report["succeeded"] is True and report["ranks"] == 3 and report["restarts"] == 0
    assert report["ring_size"] == 3 and report["self_test_ok"] is True
    assert (tmp_path / "report/report.html").read_text().startswith("<!doctype html>")
    assert not shared_memory_of(job_dir).exists()
    for member in ("chief-0", "worker-0", "worker-1"):
        state = state_of(job_dir, member)
        assert state["phase"] == "Succeeded" and state["exit_code"] == 0
        assert state["launcher"]["pid"] == 0 and state["sidecar"]["pid"] == 0


@pytest.mark.parametrize("code", [1, 2, 127])
def test_a_permanent_exit_code_fails_the_job_and_is_kept(ringmaster, write_job, job_dir, code):
    script = f'[ "$RINGMASTER_RANK" = 1 ] && {{ echo "the reason is here"; exit {code}; }}; sleep 60'
    result = ringmaster("run", "-f", write_job({"Worker": (2, [SH, "-c", script])}), "--job-dir", job_dir)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "test Failed" in result.stdout
    failure = status_of(job_dir)["failures"][-1]
    assert failure["exitCode"] == code and failure["role"] == "Worker" and failure["index"] == 1
    assert "the reason is here" in failure["message"]
    assert report_of(job_dir)["failures"][0]["exit_code"] == code
    assert state_of(job_dir, "worker-1")["exit_code"] == code


@pytest.mark.parametrize("number,code", [(9, 137), (11, 139)])
def test_a_process_that_dies_of_a_signal_is_restarted_in_place(ringmaster, write_job, job_dir, number, code):
    script = f'[ "$RINGMASTER_ROUND$RINGMASTER_RANK" = 11 ] && kill -{number} {SELF}; echo round $RINGMASTER_ROUND'
    result = ringmaster("run", "-f", write_job({"Worker": (3, [SH, "-c", script])}), "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    status, report = status_of(job_dir), report_of(job_dir)
    assert status["restarts"] == 1 and status["attempt"] == 1
    assert [(r["attempt"], r["round"]) for r in report["rounds"]] == [(1, 1), (1, 2)]
    assert status["failures"][-1]["exitCode"] == code and status["failures"][-1]["signal"] == number
    assert report["restarts"] == 1 and report["failures"][0]["member"] == "worker-1"
    assert 0 < report["recovery_without_startup_seconds"] < 5
    assert log_of(job_dir, "worker-1") == "round 2\n"
    assert log_of(job_dir, "worker-0").endswith("round 2\n")


def test_every_restart_names_class_rank_code_reason_and_the_end_of_the_log(ringmaster, write_job, job_dir):
    script = f'[ "$RINGMASTER_ROUND$RINGMASTER_RANK" = 11 ] && {{ echo "the reason is here" >&2; kill -11 {SELF}; }}; echo on'
    result = ringmaster("run", "-f", write_job({"Worker": (3, [SH, "-c", script])}), "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    failure = status_of(job_dir)["failures"][-1]
    assert {k: failure[k] for k in ("role", "index", "rank", "exitCode", "signal", "class", "reason", "message")} == {
        "role": "Worker", "index": 1, "rank": 1, "exitCode": 139, "signal": 11, "class": "User", "reason": "Error",
        "message": "the reason is here"}
    assert report_of(job_dir)["failures"][0]["rank"] == 1
    shown = ringmaster("status", job_dir).stdout
    assert "worker-1 (rank 1)  attempt 1 round 1  Error (User)  code 139" in shown


def test_a_rule_reads_the_log_of_a_process_that_is_restarted_in_place(ringmaster, write_job, job_dir):
    """Without the rule code 7 is permanent."""
    script = '[ "$RINGMASTER_ROUND$RINGMASTER_RANK" = 11 ] && { echo "OSError: Stale file handle" >&2; exit 7; }; echo on'
    rules = [{"name": "flaky-storage", "action": "RestartJobAndIgnoreMaxRestarts", "onMessagePattern": "Stale file handle"}]
    result = ringmaster("run", "-f", write_job({"Worker": (2, [SH, "-c", script])}, failurePolicy={"rules": rules}), "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    assert status_of(job_dir)["restarts"] == 1 and status_of(job_dir)["attempt"] == 1


def test_a_crash_that_comes_again_gets_a_new_pod_and_then_ends_the_job(ringmaster, write_job, job_dir):
    job = write_job({"Worker": (2, [SH, "-c", f'[ $RINGMASTER_RANK = 1 ] && kill -11 {SELF}; sleep 60'])},
                    failurePolicy={"backoffBaseSeconds": 0})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert result.returncode == 1, result.stdout + result.stderr
    status = status_of(job_dir)
    assert [(f["attempt"], f["round"]) for f in status["failures"]] == [(1, 1), (1, 2), (2, 1)]
    assert "RepeatedCrash" in result.stdout and "3 times in a row without progress" in result.stdout


def test_a_budget_that_is_used_up_fails_the_job(ringmaster, write_job, job_dir):
    job = write_job({"Worker": (2, [SH, "-c", f'kill -9 {SELF}'])}, runPolicy={"backoffLimit": 1}, failurePolicy={"backoffBaseSeconds": 0})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BackoffLimitExceeded" in result.stdout
    assert status_of(job_dir)["restarts"] == 1


def test_a_command_that_is_not_there(ringmaster, write_job, job_dir):
    result = ringmaster("run", "-f", write_job({"Worker": (2, ["no-such-program", "x"])}), "--job-dir", job_dir)
    assert result.returncode == 1
    assert status_of(job_dir)["failures"][-1]["exitCode"] == 127
    assert "no-such-program" in result.stdout


def test_a_deadline(ringmaster, write_job, job_dir):
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["sleep", "1000"])}), "--job-dir", job_dir, "--timeout", "1s")
    assert result.returncode == 1 and "DeadlineExceeded" in result.stdout, result.stdout + result.stderr


def test_exit_codes_are_kept_through_a_group_that_waits(ringmaster, write_job, job_dir, tmp_path):
    """A worker that is done waits for the others; a later failure makes everyone run again."""
    script = """
    if [ "$RINGMASTER_RANK" = 0 ]; then echo done; touch "$SAID"; exit 0; fi
    while [ ! -e "$SAID" ]; do sleep 0.05; done
    if [ "$RINGMASTER_ROUND" = 1 ]; then sleep 0.3; kill -9 $$$$; fi
    """
    job = write_job({"Worker": (2, [SH, "-c", script])}, env={"SAID": tmp_path / "said"})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    assert log_of(job_dir, "worker-0") == "done\ndone\n"


# ---- what will not end, and what ends too early --------------------------------------------------------------------------------


def test_a_worker_that_ignores_sigterm_is_killed_at_a_restart(ringmaster, write_job, job_dir):
    script = """
    if [ "$RINGMASTER_ROUND" = 1 ]; then
        trap '' TERM
        [ "$RINGMASTER_RANK" = 1 ] && { sleep 0.5; kill -9 $$$$; }
        while :; do sleep 0.1; done
    fi
    """
    result = ringmaster("run", "-f", write_job({"Worker": (2, [SH, "-c", script])}), "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    assert status_of(job_dir)["restarts"] == 1


def test_a_sidecar_that_is_killed_comes_back(ringmaster_start, write_job, job_dir, wait_for):
    script = 'while [ ! -e "$GO" ]; do sleep 0.05; done; echo end'
    go = job_dir / "go"
    job = write_job({"Worker": (2, [SH, "-c", script])}, env={"GO": go})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0", "worker-1"), what="both workers run")
    first = state_of(job_dir, "worker-1")["sidecar"]["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: state_of(job_dir, "worker-1")["sidecar"]["pid"] not in (0, first), what="a new sidecar")
    go.touch()
    assert runner.wait(PATIENCE_S) == 0, runner.out_path.read_text() + runner.err_path.read_text()
    assert "the sidecar of worker-1 ended (code 137)" in runner.out_path.read_text()
    assert log_of(job_dir, "worker-1").endswith("end\n")


def test_the_coordinators_sidecar_is_killed(ringmaster_start, write_job, job_dir, wait_for):
    script = 'while [ ! -e "$GO" ]; do sleep 0.05; done; echo end'
    go = job_dir / "go"
    runner = ringmaster_start("run", "-f", write_job({"Worker": (3, [SH, "-c", script])}, env={"GO": go}), "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0", "worker-1", "worker-2"), what="all workers run")
    os.kill(state_of(job_dir, "worker-0")["sidecar"]["pid"], signal.SIGKILL)
    go.touch()
    assert runner.wait(PATIENCE_S) == 0, runner.out_path.read_text() + runner.err_path.read_text()
    assert status_of(job_dir)["phase"] == "Succeeded"


def test_a_launcher_that_is_killed_takes_its_process_along(ringmaster_start, write_job, job_dir, wait_for):
    job = write_job({"Worker": (2, [SH, "-c", '[ "$RINGMASTER_ATTEMPT$RINGMASTER_ROUND" != 11 ] || sleep 60'])})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0", "worker-1"), what="both workers run")
    state = state_of(job_dir, "worker-1")
    os.kill(state["launcher"]["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(state["trainer_pid"]), what="the trainer ends with its launcher")
    assert runner.wait(PATIENCE_S) == 0, runner.out_path.read_text() + runner.err_path.read_text()
    assert status_of(job_dir)["attempt"] == 2, "a pod that failed is made anew, in a new attempt"


# ---- the runner's own end ----------------------------------------------------------------------------------------------------


SLEEPER = 'echo attempt $RINGMASTER_ATTEMPT; [ "$RINGMASTER_ATTEMPT" = 1 ] && { sleep 60 & wait; }; echo end'


def test_the_runner_is_killed_and_nothing_outlives_it(ringmaster_start, ringmaster, write_job, job_dir, wait_for, processes):
    runner = ringmaster_start("run", "-f", write_job({"Worker": (2, [SH, "-c", SLEEPER])}), "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0", "worker-1"), what="both workers run")
    pids = [state_of(job_dir, m)[p]["pid"] for m in ("worker-0", "worker-1") for p in ("launcher", "sidecar")]
    pids += [state_of(job_dir, m)["trainer_pid"] for m in ("worker-0", "worker-1")]
    assert all(alive(pid) for pid in pids)
    runner.kill()
    runner.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), what="every process is gone")
    wait_for(lambda: not processes(), what="no grandchild is left either")

    result = ringmaster("run", "--resume", "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    assert status_of(job_dir)["attempt"] == 2
    assert log_of(job_dir, "worker-1", 2) == "attempt 2\nend\n"


def test_ctrl_c_once_suspends_and_resume_goes_on(ringmaster_start, ringmaster, write_job, job_dir, wait_for, processes):
    runner = ringmaster_start("run", "-f", write_job({"Worker": (2, [SH, "-c", SLEEPER])}), "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0", "worker-1"), what="both workers run")
    runner.send_signal(signal.SIGINT)
    assert runner.wait(PATIENCE_S) == 130
    assert not processes()
    out = runner.out_path.read_text()
    assert f"ringmaster run --resume --job-dir {job_dir}" in out
    assert status_of(job_dir)["phase"] == "Suspended"

    shown = ringmaster("status", "--job-dir", job_dir)
    assert shown.returncode == 0 and "Suspended" in shown.stdout
    assert f"no runner is at work here; continue with: ringmaster run --resume --job-dir {job_dir}\n" in shown.stdout
    assert "failed" not in shown.stdout, "a member that was ended with the runner has not failed"

    result = ringmaster("run", "--resume", "--job-dir", job_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    status = status_of(job_dir)
    assert status["phase"] == "Succeeded" and status["attempt"] == 2 and status["restarts"] == 0
    assert not shared_memory_of(job_dir).exists()


def test_ctrl_c_waits_for_the_grace_period_only(ringmaster_start, write_job, job_dir, wait_for):
    job = write_job({"Worker": (2, [SH, "-c", "trap '' TERM; while :; do sleep 0.1; done"])})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir, "--grace", "1s")
    wait_for(running(job_dir, "worker-0", "worker-1"), what="both workers run")
    started = time.monotonic()
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(PATIENCE_S) == 130
    assert time.monotonic() - started > 0.5


def test_ctrl_c_twice_kills_at_once(ringmaster_start, write_job, job_dir, wait_for, processes):
    job = write_job({"Worker": (2, [SH, "-c", "trap '' TERM; while :; do sleep 0.1; done"])})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir, "--grace", "1h")
    wait_for(running(job_dir, "worker-0", "worker-1"), what="both workers run")
    runner.send_signal(signal.SIGINT)
    wait_for(lambda: "once more to kill" in runner.out_path.read_text(), what="the first one is heard")
    runner.send_signal(signal.SIGINT)
    assert runner.wait(PATIENCE_S) == 130
    wait_for(lambda: not processes(), what="nothing is left")


# ---- what cannot be run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,expected",
    [
        ("a: [1, 2\nb: 3\n", "bad.yaml:2:"),
        ("", "is empty; expected a TrainingJob"),
        ("kind: Pod\napiVersion: v1\n", "kind: found \"Pod\", expected TrainingJob"),
        ("a: &a [*a]\n", "bad.yaml:1:"),
        ("kind: TrainingJob\n---\nkind: TrainingJob\n", "a second TrainingJob; give each a file of its own"),
    ],
)
def test_a_file_that_is_no_manifest(ringmaster, tmp_path, job_dir, text, expected):
    (tmp_path / "bad.yaml").write_text(text)
    result = ringmaster("run", "-f", "bad.yaml", "--job-dir", job_dir)
    assert result.returncode == 2 and expected in result.stderr, result.stderr
    assert not job_dir.exists(), "nothing is made for a manifest that is wrong"


WRONG = """apiVersion: ringmaster.dev/v1alpha1
kind: TrainingJob
metadata:
  name: wrong
spec:
  runPolcy: {}
  replicaSpecs:
    Worker:
      replicas: four
      template:
        spec:
          containers:
          - name: main
            image: local
            command: [train]
"""


@pytest.mark.parametrize("command", ["run", "validate", "render"])
def test_every_problem_is_told_with_its_place(ringmaster, tmp_path, command):
    (tmp_path / "wrong.yaml").write_text(WRONG)
    result = ringmaster(command, "-f", "wrong.yaml")
    assert result.returncode == 2
    assert 'wrong.yaml:6:3: spec.runPolcy: unknown field; did you mean "runPolicy"?' in result.stderr
    assert "wrong.yaml:9:7: spec.replicaSpecs.Worker.replicas: " in result.stderr
    assert result.stderr.count("runPolcy") == 1, "each problem is told once"
    assert result.stderr.endswith(f"ringmaster {command}: the manifest cannot be used: 2 problems\n")
    assert not (tmp_path / "ringmaster-jobs").exists()


def test_a_manifest_that_is_not_there(ringmaster):
    result = ringmaster("run", "-f", "nowhere.yaml")
    assert result.returncode == 2 and "nowhere.yaml" in result.stderr


@pytest.mark.parametrize("name", ["Bad_Name", "9lives", "a" * 52])
def test_a_name_that_no_job_can_have(ringmaster, tmp_path, name):
    result = ringmaster("run", "-np", "1", "--name", name, "--", "true")
    assert result.returncode == 2 and f"--name {name}: at most 51 " in result.stderr
    assert not (tmp_path / "ringmaster-jobs").exists()


def test_a_container_without_a_command(ringmaster, tmp_path, job_dir):
    job = {
        "apiVersion": "ringmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "bare"},
        "spec": {"replicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "m", "image": "x"}]}}}}},
    }
    (tmp_path / "bare.json").write_text(json.dumps(job))
    result = ringmaster("run", "-f", "bare.json", "--job-dir", job_dir)
    assert result.returncode == 2
    assert "spec.replicaSpecs.Worker.template.spec.containers[0].command: missing" in result.stderr


def test_a_report_that_cannot_be_written_is_told_before_the_job_runs(ringmaster, tmp_path, job_dir):
    (tmp_path / "taken").write_text("a file")
    result = ringmaster("run", "-np", "1", "--job-dir", job_dir, "--report", tmp_path / "taken/report", "--", "touch", "ran")
    assert result.returncode == 3 and f"--report: make directory {tmp_path}/taken" in result.stderr, result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_job_directory_that_cannot_be_made(ringmaster, tmp_path):
    (tmp_path / "taken").write_text("a file")
    result = ringmaster("run", "-np", "1", "--job-dir", tmp_path / "taken/job", "--", "true")
    assert result.returncode == 3 and f"{tmp_path}/taken/job cannot be made, choose another with --job-dir" in result.stderr


def test_a_working_directory_that_is_not_there(ringmaster, write_job, tmp_path, job_dir):
    job = json.loads(write_job({"Worker": (1, ["true"])}).read_text())
    job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["workingDir"] = "/no/such/place"
    (tmp_path / "wd.json").write_text(json.dumps(job))
    result = ringmaster("run", "-f", "wd.json", "--job-dir", job_dir)
    assert result.returncode == 2 and "workingDir /no/such/place" in result.stderr


def test_a_suspended_job_says_so(ringmaster, write_job, job_dir):
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}, suspend=True), "--job-dir", job_dir)
    assert result.returncode == 3 and "spec.suspend is true" in result.stderr


def test_a_ring_port_in_use_names_its_holder(ringmaster, write_job, job_dir):
    with socket.create_server(("0.0.0.0", 0)) as held:
        port = held.getsockname()[1]
        result = ringmaster("run", "-f", write_job({"Worker": (2, ["true"])}), "--job-dir", job_dir, "--ring-port", port)
    assert result.returncode == 3
    assert re.search(rf"ring port {port} on 127\.1\.\d+\.1 is in use by pid {os.getpid()} ", result.stderr), result.stderr
    assert "--ring-port" in result.stderr


def test_a_framework_port_in_use(ringmaster, write_job, job_dir):
    script = 'echo "$TF_CONFIG"'
    with socket.create_server(("0.0.0.0", 0)) as held:
        port = held.getsockname()[1]
        job = write_job({"Worker": (2, [SH, "-c", script])}, tfConfig={"port": port})
        fixed = ringmaster("run", "-f", job, "--job-dir", job_dir, "--framework-port", port)
        assert fixed.returncode == 3 and f"pid {os.getpid()}" in fixed.stderr and "--framework-port" in fixed.stderr
        moved = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert moved.returncode == 0, moved.stderr
    assert json.loads(log_of(job_dir, "worker-0"))["cluster"]["worker"][0].endswith(f".1:{port + 100}")


def test_two_jobs_at_once(ringmaster_start, write_job, job_dir, tmp_path, wait_for):
    """Each has its own addresses and ports; neither waits for the other."""
    a, b = tmp_path / "a", tmp_path / "b"
    script = 'echo "$TF_CONFIG"; while [ ! -e "$GO" ]; do sleep 0.05; done'
    job = write_job({"Worker": (2, [SH, "-c", script])}, env={"GO": tmp_path / "go"})
    runners = [ringmaster_start("run", "-f", job, "--job-dir", d) for d in (a, b)]
    wait_for(running(a, "worker-0", "worker-1"), what="the first runs")
    wait_for(running(b, "worker-0", "worker-1"), what="the second runs, too")
    (tmp_path / "go").touch()
    assert [r.wait(PATIENCE_S) for r in runners] == [0, 0]
    workers = [json.loads(log_of(d, "worker-0"))["cluster"]["worker"] for d in (a, b)]
    assert not set(workers[0]) & set(workers[1])
    assert not {w.split(":")[1] for w in workers[0]} & {w.split(":")[1] for w in workers[1]}


def on_small_disk(command, mount_point, size="256k"):
    """The command with a small tmpfs at mount_point, in a mount namespace of its own."""
    own_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    return ["unshare", *own_root, "--mount", SH, "-c", script, str(mount_point), *map(str, command)]


def test_a_full_disk_in_the_job_directory(ringmaster_path, env, write_job, job_dir, tmp_path, processes):
    job_dir.mkdir()
    before = set(pathlib.Path("/dev/shm").glob("ringmaster-*"))
    script = "while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done"
    job = write_job({"Worker": (2, [SH, "-c", script])})
    command = [ringmaster_path, "run", "-f", job, "--job-dir", job_dir, "--no-logs"]
    result = subprocess.run(on_small_disk(command, job_dir), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "No space left on device" in result.stderr and str(job_dir) in result.stderr
    assert f"continue with: ringmaster run --resume --job-dir {job_dir}\n" in result.stderr
    assert not processes()
    for kept in set(pathlib.Path("/dev/shm").glob("ringmaster-*")) - before:
        if not (kept / "run").exists():  # another test's job, running beside this one, has its sockets there
            assert sum(f.stat().st_size for f in kept.rglob("*") if f.is_file()) < 65536, "no slots were made: little is kept"
            subprocess.run(["rm", "-rf", str(kept)], check=True)


def test_a_disk_that_is_full_from_the_start(ringmaster_path, env, write_job, job_dir, tmp_path):
    job_dir.mkdir()
    command = [SH, "-c", 'head -c 1000000 /dev/zero >"$0/fill" 2>/dev/null; exec "$@"', job_dir, ringmaster_path, "run", "-f",
               write_job({"Worker": (2, ["true"])}), "--job-dir", job_dir]
    result = subprocess.run(on_small_disk(command, job_dir), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 3 and "No space left on device" in result.stderr, result.stderr


def test_programs_that_are_missing(ringmaster, write_job, job_dir, tmp_path):
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}), "--job-dir", job_dir, "--install-dir", tmp_path)
    assert result.returncode == 3
    assert f"{tmp_path}/bin/ringmaster-launch is missing" in result.stderr and "--install-dir" in result.stderr


def test_a_sidecar_that_cannot_start_ends_the_run_with_words(ringmaster, write_job, job_dir, tmp_path, launch_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ringmaster-launch").symlink_to(launch_path)
    sidecar = tmp_path / "bin/ringmaster-sidecar"
    sidecar.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    sidecar.chmod(0o755)
    result = ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}), "--job-dir", job_dir, "--install-dir", tmp_path)
    assert result.returncode == 3, result.stdout
    assert "the sidecar of worker-0 ended" in result.stderr and "sidecar.log" in result.stderr
    assert "broken" in (job_dir / "logs/worker-0/sidecar.log").read_text()


# ---- the job directory ------------------------------------------------------------------------------------------------------------


def test_a_directory_that_holds_a_job_is_not_started_over(ringmaster, write_job, job_dir):
    job = write_job({"Worker": (1, [SH, "-c", "echo $RINGMASTER_JOB_UID"])})
    assert ringmaster("run", "-f", job, "--job-dir", job_dir).returncode == 0
    again = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert again.returncode == 2 and "--overwrite" in again.stderr and "Succeeded" in again.stderr
    ended = ringmaster("run", "--resume", "--job-dir", job_dir)
    assert ended.returncode == 2 and "nothing to resume" in ended.stderr
    first = log_of(job_dir, "worker-0")
    (job_dir / "mine.txt").write_text("a file of the user's")
    assert ringmaster("run", "-f", job, "--job-dir", job_dir, "--overwrite").returncode == 0
    assert log_of(job_dir, "worker-0") != first, "another job with another uid"
    assert (job_dir / "mine.txt").exists()


def test_one_runner_at_a_time(ringmaster_start, ringmaster, write_job, job_dir, wait_for):
    job = write_job({"Worker": (1, ["sleep", "30"])})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0"), what="the job runs")
    second = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert second.returncode == 3 and f"pid {runner.pid}" in second.stderr, second.stderr


def test_resume_where_nothing_is(ringmaster, job_dir):
    result = ringmaster("run", "--resume", "--job-dir", job_dir)
    assert result.returncode == 2 and "nothing to resume" in result.stderr


def test_the_default_directory_is_named_after_the_job(ringmaster, write_job, tmp_path):
    assert ringmaster("run", "-f", write_job({"Worker": (1, ["true"])}, name="named")).returncode == 0
    assert status_of(tmp_path / "ringmaster-jobs/named")["phase"] == "Succeeded"


def test_checkpoints_are_kept_in_the_job_directory_unless_the_path_exists(ringmaster, write_job, job_dir, tmp_path):
    script = 'echo "$RINGMASTER_CHECKPOINT_DIR"'
    job = write_job({"Worker": (1, [SH, "-c", script])}, checkpoint={"path": "/ckpt-of-a-volume"})
    assert ringmaster("run", "-f", job, "--job-dir", job_dir).returncode == 0
    assert log_of(job_dir, "worker-0").strip().startswith(str(job_dir / "checkpoints"))
    own = tmp_path / "own"
    own.mkdir()
    job = write_job({"Worker": (1, [SH, "-c", script])}, checkpoint={"path": str(own)})
    assert ringmaster("run", "-f", job, "--job-dir", job_dir, "--overwrite").returncode == 0
    assert log_of(job_dir, "worker-0").strip().startswith(str(own))


def test_environment_of_a_process(ringmaster, write_job, job_dir):
    script = 'echo "$OUTSIDE|$OWN|$RINGMASTER_LEFT_OVER|${PYTHONPATH%%:*}|${PYTHONPATH##*:}"'
    job = write_job({"Worker": (1, [SH, "-c", script])}, env={"OWN": "$(RINGMASTER_JOB)!"})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir,
                        env_more={"OUTSIDE": "yes", "RINGMASTER_LEFT_OVER": "x", "PYTHONPATH": "/mine"})
    assert result.returncode == 0, result.stderr
    outside, _own, left_over, first, last = log_of(job_dir, "worker-0").strip().split("|")
    assert outside == "yes" and left_over == "" and first.endswith("python") and last == "/mine"


@pytest.mark.parametrize("attempt", range(4))
def test_the_last_report_of_a_process_counts(ringmaster, write_job, job_dir, attempt):
    """Final metrics are told right before a process ends, when nothing is sent any more because it would be too often."""
    script = ("import ringmaster as rm; rm.init()\n"
              "for step in range(1, 30): rm.report(step=step, total_steps=29)\n"
              "rm.report(metrics={'accuracy': 0.5, 'weights_hash': 'same'})")
    job = write_job({"Worker": (3, [sys.executable, "-c", script])})
    result = ringmaster("run", "-f", job, "--job-dir", job_dir)
    assert result.returncode == 0, result.stderr
    report = report_of(job_dir)
    assert report["weights_equal"] is True and report["accuracy"] == 0.5
    assert [m["step"] for m in report["members"]] == [29, 29, 29]


# ---- horovodrun's form -----------------------------------------------------------------------------------------------------------


def test_np_commands_are_taken_literally(ringmaster):
    result = ringmaster("run", "-np", "1", SH, "-c", 'echo "$$ $(echo sub) $RINGMASTER_JOB "; test -d /proc/$$')
    assert result.returncode == 0, result.stderr
    assert " sub sh " in result.stdout


def test_np(ringmaster, tmp_path):
    script = tmp_path / "train_it.py"
    script.write_text("import os; print('rank', os.environ['HOROVOD_RANK'], 'of', os.environ['HOROVOD_SIZE'], os.environ.get('HOROVOD_CYCLE_TIME'))")
    result = ringmaster("run", "-np", "3", "-H", "localhost:4", "-p", "12345", "--cycle-time-ms", "2", "python3", script)
    assert result.returncode == 0, result.stderr
    for rank in range(3):
        assert f"[worker-{rank}] rank {rank} of 3 2" in result.stdout
    assert "-p has no effect" in result.stderr
    assert status_of(tmp_path / "ringmaster-jobs/train-it")["phase"] == "Succeeded"
    again = ringmaster("run", "-np", "1", "--", "python3", script)
    assert again.returncode == 0, again.stderr
    assert status_of(tmp_path / "ringmaster-jobs/train-it-2")["phase"] == "Succeeded"


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["-np", "2", "-H", "gpu7:2", "true"], 'host "gpu7" is another machine'),
        (["-np", "4", "-H", "localhost:2", "true"], "more than the 2 slots"),
        (["-np", "2"], "which command?"),
        (["--", "true"], "how many processes?"),
        (["-np", "2", "--min-np", "3", "true"], "--min-np 3 is more than the 2 processes"),
        (["-np", "2", "--elastic-timeout", "1", "true"], "--elastic-timeout is not supported"),
        ([], "what is to be run?"),
        (["-f", "x.yaml", "true"], "give one of them"),
        (["--jobdir", "x"], "--job-dir"),
        (["--resume"], "resume which job?"),
        (["-f", "x", "--timeout", "soon"], "--timeout"),
    ],
)
def test_bad_usage(ringmaster, arguments, text):
    result = ringmaster("run", *arguments)
    assert result.returncode == 2 and text in result.stderr, result.stderr


# ---- what is printed ---------------------------------------------------------------------------------------------------------------


def on_a_terminal(command, env, cwd, columns=100):
    """Runs the command on a pseudo-terminal; returns exit code and all that it put there."""
    import fcntl
    import pty
    import struct
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen(list(map(str, command)), env=env, cwd=cwd, stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    output = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(parent)
    return process.wait(PATIENCE_S), output.decode(errors="replace")


@pytest.mark.parametrize(
    "variables,arguments,live,color",
    [
        ({"TERM": "xterm"}, [], True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, [], True, False),
        ({"TERM": "xterm"}, ["--no-color"], True, False),
        ({"TERM": "xterm"}, ["--plain"], False, True),
        ({"TERM": "dumb"}, [], False, False),
    ],
)
def test_the_live_view(ringmaster_path, env, write_job, job_dir, tmp_path, variables, arguments, live, color):
    job = write_job({"Worker": (2, [SH, "-c", "echo hello from $RINGMASTER_RANK; sleep 1"])})
    env.pop("NO_COLOR", None)
    code, text = on_a_terminal([ringmaster_path, "run", "-f", job, "--job-dir", job_dir, *arguments], {**env, **variables}, tmp_path)
    assert code == 0, text
    assert "hello from 1" in text and "test Succeeded" in text.replace("\033[0m", "").replace("\033[1;32m", "")
    assert ("MEMBER" in text) == live
    assert ("\033[J" in text) == live, "the picture is drawn over"
    assert ("\033[0m" in text) == color
    assert text.count("\033[?25l") == text.count("\033[?25h") - (1 if live else 0), "the cursor is given back"


def test_quiet(ringmaster, write_job, job_dir):
    result = ringmaster("run", "-q", "-f", write_job({"Worker": (1, [SH, "-c", "echo noise"])}), "--job-dir", job_dir)
    assert result.returncode == 0 and "noise" not in result.stdout and "test Succeeded" in result.stdout
    assert log_of(job_dir, "worker-0") == "noise\n"


def test_a_reader_that_goes_away_does_not_end_the_job(ringmaster_path, env, write_job, job_dir, tmp_path):
    job = write_job({"Worker": (1, [SH, "-c", "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"])})
    runner = subprocess.Popen([str(ringmaster_path), "run", "-f", str(job), "--job-dir", str(job_dir)], env=env, cwd=tmp_path,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    runner.stdout.close()
    assert runner.wait(PATIENCE_S) == 0
    runner.stderr.close()
    assert status_of(job_dir)["phase"] == "Succeeded"


# ---- the other commands --------------------------------------------------------------------------------------------------------------


def test_status_and_logs(ringmaster, write_job, job_dir):
    job = write_job({"Worker": (2, [SH, "-c", "echo one; echo two >&2"])})
    assert ringmaster("run", "-f", job, "--job-dir", job_dir).returncode == 0
    text = ringmaster("status", "--job-dir", job_dir)
    assert text.returncode == 0 and "Succeeded" in text.stdout and "worker-1" in text.stdout and "done" in text.stdout
    as_json = ringmaster("status", "--job-dir", job_dir, "-o", "json")
    assert json.loads(as_json.stdout)["phase"] == "Succeeded"
    assert ringmaster("logs", "--job-dir", job_dir, "worker-1").stdout == "one\ntwo\n"
    assert "[worker-0] one\n" in ringmaster("logs", "--job-dir", job_dir).stdout
    assert ringmaster("logs", "--job-dir", job_dir, "-f").returncode == 0, "a job that is over is followed to its end at once"
    assert ringmaster("logs", "--job-dir", job_dir, "--sidecar", "worker-0").returncode == 0
    wrong = ringmaster("logs", "--job-dir", job_dir, "worker-5")
    assert wrong.returncode == 2 and 'did you mean "worker-' in wrong.stderr
    assert ringmaster("status", "--job-dir", job_dir / "nowhere").returncode == 3


def test_logs_follow(ringmaster_start, write_job, job_dir, wait_for, tmp_path):
    script = 'echo first; while [ ! -e "$GO" ]; do sleep 0.05; done; echo last'
    job = write_job({"Worker": (1, [SH, "-c", script])}, env={"GO": tmp_path / "go"})
    runner = ringmaster_start("run", "-f", job, "--job-dir", job_dir)
    wait_for(running(job_dir, "worker-0"), what="the job runs")
    follower = ringmaster_start("logs", "--job-dir", job_dir, "-f", "worker-0")
    wait_for(lambda: follower.out_path.read_text() == "first\n", what="the first line")
    (tmp_path / "go").touch()
    assert runner.wait(PATIENCE_S) == 0 and follower.wait(PATIENCE_S) == 0
    assert follower.out_path.read_text() == "first\nlast\n"


def test_validate(ringmaster, write_job, tmp_path):
    good = write_job({"Chief": (1, ["true"]), "Worker": (3, ["true"])}, name="good")
    result = ringmaster("validate", "-f", good)
    assert result.returncode == 0
    assert result.stdout == f"{good}: TrainingJob good is valid: 4 replicas, ring of 4\n"
    (tmp_path / "wrong.yaml").write_text(WRONG)
    both = ringmaster("validate", good, "wrong.yaml")
    assert both.returncode == 2 and "good is valid" in both.stdout and "runPolcy" in both.stderr


def test_render(ringmaster, write_job):
    job = write_job({"Chief": (1, ["true"]), "Worker": (2, ["python", "train.py"])}, name="shown")
    items = json.loads(ringmaster("render", "-f", job, "-o", "json").stdout)["items"]
    assert [f"{i['kind']}/{i['metadata']['name']}" for i in items] == [
        "Service/shown", "Pod/shown-chief-0", "Pod/shown-worker-0", "Pod/shown-worker-1"]
    main = items[3]["spec"]["containers"][0]
    assert main["command"] == ["/ringmaster/bin/ringmaster-launch", "--", "python", "train.py"]
    documents = ringmaster("render", "-f", job).stdout.split("---\n")
    assert len(documents) == 4 and all(d.startswith("apiVersion: v1\n") for d in documents)
    assert ringmaster("render", "-f", job, "--tf-config", "worker:1").stdout == (
        '{"cluster":{"chief":["shown-chief-0.shown.default.svc:2222"],"worker":["shown-worker-0.shown.default.svc:2222",'
        '"shown-worker-1.shown.default.svc:2222"]},"task":{"type":"worker","index":1},"environment":"cloud"}\n')
    assert ringmaster("render", "-f", job, "--tf-config", "chief:0", "--local").stdout == (
        '{"cluster":{"chief":["127.1.0.1:2222"],"worker":["127.1.0.2:2223","127.1.0.3:2224"]},'
        '"task":{"type":"chief","index":0},"environment":"cloud"}\n')
    wrong = ringmaster("render", "-f", job, "--tf-config", "worker:7")
    assert wrong.returncode == 2 and "the job has 2 replicas of Worker" in wrong.stderr


COMMANDS = ["run", "submit", "status", "logs", "events", "wait", "suspend", "resume", "checkpoint", "scale", "delete", "validate", "render", "convert",
            "bench", "timeline", "completion", "version"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help(ringmaster, command):
    page = ringmaster(command, "--help")
    assert page.returncode == 0 and page.stdout.startswith(f"Usage: ringmaster {command}")
    assert "Exit codes:" in page.stdout or command in ("completion", "version")
    assert ringmaster("help", command).stdout == page.stdout


def test_the_front_page_and_words_that_are_none(ringmaster):
    front = ringmaster("--help")
    assert re.findall(r"^  ([a-z]+) +\S", front.stdout.split("Commands:")[1].split("Examples:")[0], re.M) == [*COMMANDS, "help"]
    assert front.returncode == 0 and "Exit codes:" in front.stdout
    assert ringmaster().returncode == 2
    wrong = ringmaster("vlidate")
    assert wrong.returncode == 2 and 'did you mean "validate"?' in wrong.stderr
    assert ringmaster("version").stdout.startswith("ringmaster ")


def test_the_manual_page_is_clean(root):
    result = subprocess.run(["mandoc", "-Tlint", str(root / "docs/man/ringmaster.1")], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == "", result.stdout


def test_the_manual_names_every_option_of_run(ringmaster, root):
    """A new option belongs into the manual page and the reference, too."""
    page = ringmaster("run", "--help").stdout.split("horovodrun's options")[0]
    manual = (root / "docs/man/ringmaster.1").read_text()
    for option in re.findall(r"--([a-z][a-z-]+)", page.split("Options:")[1]):
        if option in ("help", "no-logs", "no-color"):
            continue
        assert re.search(rf"Fl Fl (no-)?{option}\b", manual), f"--{option} is not in the manual page"
