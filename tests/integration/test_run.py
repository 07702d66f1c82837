"""ringmaster run, from outside: how a job ends, what it leaves behind, and how it is taken up again. No framework: sh and Python's own modules."""

import json
import os
import signal
import sys
import time

import pytest
from conftest import PATIENCE_S
from local_job import SELF, SH, alive, log_of, no_memory_left, report_of, running, shared_memory_of, state_of, status_of  # noqa: F401 (a fixture)

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
