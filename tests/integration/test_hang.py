"""A job that hangs: it is noticed, what everybody did is written down, and all go on. And what is no hang is left alone."""

import ctypes
import json
import os
import pathlib
import signal
import sys
import threading

import pytest

LIMIT_S = 3
STEPS = """
import os, pathlib, sys, time
import ringmaster as rm
import numpy
rm.init()
first = os.environ["RINGMASTER_ATTEMPT"] + os.environ["RINGMASTER_ROUND"] == "11"
def train(steps, between):
    for step in range(1, steps + 1):
        rm.allreduce(numpy.ones(4, dtype="float32"), name=f"step{step}")
        rm.report(step=step, total_steps=steps)
        if step == 4:
            between()
"""


@pytest.fixture
def hanging(ringmaster, write_job, job_dir, tmp_path, client_library):
    """Runs STEPS and `text` on three ranks; returns what ringmaster said, the status and the newest failure's evidence."""

    def run(text, beside=None, **spec):
        program = tmp_path / "train.py"
        program.write_text(STEPS + text)
        job = write_job({"Worker": (3, [sys.executable, str(program)])},
                        health={"progressTimeoutSeconds": LIMIT_S, "firstStepTimeoutSeconds": 60}, **spec)
        thread = threading.Thread(target=beside, daemon=True) if beside else None
        if thread:
            thread.start()
        result = ringmaster("run", "-f", job, "--job-dir", job_dir)
        if thread:
            thread.join(10)
            assert not thread.is_alive()
        status = json.loads((job_dir / "status.json").read_text())
        failures = status.get("failures", [])
        directory = pathlib.Path(failures[-1]["evidence"]) if failures and "evidence" in failures[-1] else None
        return result, status, {path.name: path.read_text() for path in directory.iterdir()} if directory else {}

    return run


def test_a_rank_that_hangs_is_named_with_stacks_of_all_and_all_start_again(hanging, job_dir):
    result, status, evidence = hanging("""
def stuck_in_a_step():
    if first and rm.rank() == 1:
        time.sleep(600)
train(8, stuck_in_a_step)
""")
    assert result.returncode == 0, result.stdout + result.stderr
    (failure,) = status["failures"]
    assert status["restarts"] == 1 and status["attempt"] == 1 and status["restartsCountTowardsMax"] == 1
    assert (failure["reason"], failure["class"], failure["rank"]) == ("Hang", "Hang", 1) and "exitCode" not in failure
    assert "worker-1 made no progress for" in failure["message"] and "since step 4 and uses no CPU" in failure["message"]
    assert '"allreduce.step5" has waited' in failure["message"]
    assert set(evidence) == {"ring.txt", "worker-0.txt", "worker-1.txt", "worker-2.txt"}
    assert "stuck_in_a_step" in evidence["worker-1.txt"] and "nanosleep" in evidence["worker-1.txt"]
    assert "in allreduce" in evidence["worker-0.txt"] and "in allreduce" in evidence["worker-2.txt"]
    assert "<- taken for the cause" in evidence["ring.txt"]
    assert "worker-1 made no progress and was stopped" in result.stdout
    report = json.loads((job_dir / "report.json").read_text())
    assert report["failures"][0]["evidence"] == failure["evidence"]


def test_a_frozen_process_that_answers_to_nothing_is_a_hang_too(hanging, job_dir, wait_for):
    def freeze():
        wait_for(lambda: (job_dir / "ready").exists(), 60, "a step")
        os.kill(int((job_dir / "ready").read_text()), signal.SIGSTOP)

    result, status, evidence = hanging(f"""
def wait_to_be_frozen():
    if first and rm.rank() == 2:
        ready = pathlib.Path("{job_dir}/ready.new")
        ready.write_text(str(os.getpid()))
        ready.rename("{job_dir}/ready")
        time.sleep(600)
train(6, wait_to_be_frozen)
""", freeze)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [(f["reason"], f["rank"]) for f in status["failures"]] == [("Hang", 2)]
    assert "did not write its Python stacks" in evidence["worker-2.txt"] and "in allreduce" in evidence["worker-0.txt"]


def test_one_that_hangs_again_gets_a_new_pod(hanging):
    result, status, evidence = hanging("""
def stuck():
    if os.environ["RINGMASTER_ATTEMPT"] == "1" and rm.rank() == 1:
        time.sleep(600)
train(6, stuck)
""", failurePolicy={"backoffBaseSeconds": 0})
    assert result.returncode == 0, result.stdout + result.stderr
    assert status["attempt"] == 2
    assert [(f["attempt"], f["round"], f["reason"], f["class"]) for f in status["failures"]] == [(1, 1, "Hang", "Hang"), (1, 2, "Hang", "Hang")]
    assert status["failures"][0]["evidence"] != status["failures"][1]["evidence"] and "stuck" in evidence["worker-1.txt"]


def test_an_evaluation_on_one_rank_is_no_hang(hanging):
    result, status, _ = hanging(f"""
def evaluate():
    until = time.monotonic() + 2 * {LIMIT_S}
    while rm.rank() == 0 and time.monotonic() < until:
        sum(range(100000))
train(6, evaluate)
""")
    assert result.returncode == 0, result.stdout + result.stderr
    assert status["restarts"] == 0


def test_a_process_that_a_debugger_holds_is_no_hang(hanging, job_dir, wait_for):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    attach, detach = 16, 17
    held = []

    def state(pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    def debug():
        wait_for(lambda: (job_dir / "ready").exists(), 60, "a step")
        pid = int((job_dir / "ready").read_text())
        assert libc.ptrace(attach, pid, None, None) == 0
        wait_for(lambda: state(pid) == "t", 20, "the stop")
        os.waitpid(pid, 0x40000000)  # __WALL
        held.append(pid)
        threading.Event().wait(2.5 * LIMIT_S)  # longer than would do without the debugger
        (job_dir / "go").touch()
        assert libc.ptrace(detach, pid, None, None) == 0

    result, status, _ = hanging(f"""
def hold():
    if rm.rank() == 1:
        ready = pathlib.Path("{job_dir}/ready.new")
        ready.write_text(str(os.getpid()))
        ready.rename("{job_dir}/ready")
        while not os.path.exists("{job_dir}/go"):
            time.sleep(0.05)
train(6, hold)
""", debug)
    assert held and result.returncode == 0, result.stdout + result.stderr
    assert status["restarts"] == 0
