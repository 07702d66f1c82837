"""Sidecars and launchers together: rounds, first causes, restarts in place, ends. The commands are tiny; the ring, the
rendezvous and the checkpoints' agreement are the real ones."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from conftest import BUILD, PATIENCE_S, wait_until
from group import Group

SLEEP = ["sh", "-c", 'echo "start $RINGMASTER_ROUND $RINGMASTER_FENCE $RINGMASTER_RESUME_STEP"; exec sleep 1000']


@pytest.fixture
def make_group(keep, sidecar_path, launch_path, env, mark):
    return lambda commands, **options: keep(Group(sidecar_path, launch_path, commands, env={**env, "RM_TEST_MARK": mark}, **options))


def three(command=None, **others):
    commands = dict.fromkeys(("chief-0", "worker-0", "worker-1"), command or SLEEP)
    commands.update({m.replace("_", "-"): c for m, c in others.items()})
    return commands


def rounds(group):
    return group.control.last["rounds"]


def starts(group, member):
    return [line for line in group.out(member).splitlines() if line.startswith("start ")]


def document(path):
    """What a JSON file says, None while it is not there or half written."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(path.read_text())


def all_have_started(group, times):
    """A process that runs has not said so yet."""
    wait_until(lambda: all(len(starts(group, m)) >= times for m in group.members), what=f"start number {times} of all")


# ---- the gang start --------------------------------------------------------------------------------------------------------


def test_no_process_runs_before_every_member_is_there(make_group, wait_for):
    group = make_group(three())
    group.start(["worker-1", "chief-0"])
    wait_for(lambda: group.state("worker-1") and group.state("worker-1")["state"] == "Waiting", what="worker-1 joined")
    time.sleep(0.5)
    assert group.out("chief-0") == group.out("worker-1") == ""
    group.start(["worker-0"])
    wait_for(group.running, what="all running")
    all_have_started(group, 1)
    assert all(starts(group, m) == [f"start 1 {1 << 32 | 1} -1"] for m in group.members)
    report = group.control.last
    assert (report["round"], report["self_test_ok"], report["counters"]["restarts"]) == (1, True, 0)


def test_a_sidecar_without_its_launcher_is_not_counted(make_group, wait_for):
    group = make_group(three())
    group.start(["chief-0", "worker-0"])
    group.start_sidecar("worker-1")
    time.sleep(0.5)
    assert group.out("chief-0") == ""
    group.start_launcher("worker-1")
    wait_for(group.running, what="all running")


def test_a_rank_that_sends_nothing_is_named(make_group, wait_for, env):
    """The coordinator's report says which tensor waits for whom, and that it does not any more."""
    reducer = str(BUILD / "tests/programs/reducer")
    late = ["sh", "-c", 'while [ ! -e ../go ]; do sleep 0.05; done; exec "$0"', reducer]
    group = make_group(three([reducer], worker_1=late))
    group.env["RINGMASTER_STALL_WARNING"] = "1s"
    group.start()
    said = wait_for(lambda: (group.control.last or {}).get("stalled"), what="a stall")
    assert "rank 2 (worker-1)" in said and "gradient-" in said and "2 of 3 ranks have sent it" in said
    (group.dir / "go").touch()
    wait_for(lambda: "stalled" not in group.control.last, what="the stall over")
    assert group.control.last["round"] == 1


# ---- failures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["chief-0", "worker-1"])
def test_a_killed_process_makes_all_start_again(make_group, wait_for, victim):
    group = make_group(three()).start()
    before = wait_for(group.running, what="all running")
    all_have_started(group, 1)
    os.kill(before[victim], signal.SIGKILL)
    after = wait_for(lambda: (now := group.running()) and not set(now.values()) & set(before.values()) and now, what="all running again")
    assert set(after) == set(group.members)
    report = group.control.last
    assert (report["round"], report["counters"]["restarts"], report["counters"]["restarts_counted"]) == (2, 1, 1)
    cause = rounds(group)[-1]
    role, _, index = victim.rpartition("-")
    assert (cause["role"], cause["index"], cause["exit_code"], cause["signal"], cause["round"]) == (role, int(index), 137, 9, 1)
    all_have_started(group, 2)
    assert all([line.split()[1] for line in starts(group, m)] == ["1", "2"] for m in group.members)
    assert all(process.poll() is None for process in group.launchers.values())


@pytest.mark.parametrize("victim", ["worker-0", "chief-0"])
def test_the_last_word_is_left_for_whoever_could_not_listen(make_group, wait_for, victim):
    """However the coordinator's sidecar ends: the file, which a pod keeps, says what it has counted."""
    group = make_group(three(["sh", "-c", 'echo "start $RINGMASTER_ROUND"; [ "$RINGMASTER_ROUND" = 3 ] || exec sleep 1000']))
    word = group.dir / "last-word"
    group.extra["chief-0"] = {"RINGMASTER_LAST_WORD": str(word)}
    group.start()
    before = wait_for(group.running, what="all running")
    all_have_started(group, 1)
    assert not word.exists(), "nothing has happened"
    group.control.close()
    os.kill(before[victim], signal.SIGKILL)
    all_have_started(group, 2)
    left = wait_for(lambda: document(word), what="a last word")
    assert [(r["role"], r["index"], r["exit_code"]) for r in left["rounds"]] == [(*victim.split("-")[:1], 0, 137)] and "members" in left and not left["members"]
    group.sidecars["chief-0"].kill()
    group.sidecars["chief-0"].wait()
    word.unlink()  # a new container has a new file
    group.start_sidecar("chief-0")
    assert [p.wait(PATIENCE_S) for p in group.launchers.values()] == [0, 0, 0]
    left = wait_for(lambda: (said := document(word)) and said.get("over") and said, what="the last word of all")
    assert [r["round"] for r in left["rounds"]] == [1, 2] and left["over"] is True
    assert left["counters"]["restarts"] == 2 and left["counters"]["restarts_counted"] == 1 and left["rounds"][1]["reason"] == "SidecarLost"


def test_a_permanent_code_ends_the_job_with_exactly_that_code(make_group, wait_for):
    group = make_group(three(worker_0=["sh", "-c", "sleep 0.3; exit 42"]), restart_policy="ExitCode").start()
    assert group.launchers["worker-0"].wait(PATIENCE_S) == 42
    report = wait_for(lambda: group.control.last.get("gave_up") and group.control.last, what="the job given up")
    assert report["give_up_reason"] == "PermanentExitCode"
    assert "worker-0" in report["give_up_message"]
    wait_for(lambda: group.state("chief-0")["state"] == "Waiting", what="the others stopped")
    assert group.launchers["chief-0"].poll() is None
    assert group.control.last["counters"]["restarts"] == 0


def test_a_retryable_code_is_retried(make_group, wait_for):
    once = ["sh", "-c", 'if [ "$RINGMASTER_ROUND" = 1 ]; then exit 200; fi; exec sleep 1000']
    group = make_group(three(worker_1=once), restart_policy="ExitCode").start()
    wait_for(lambda: group.running() and group.control.last["round"] == 2, what="the second round")
    assert rounds(group)[-1]["exit_code"] == 200


def test_a_command_that_is_not_there_ends_the_job_and_is_named(make_group, wait_for):
    group = make_group(three(worker_1=["/no/such/train.py"]), restart_policy="ExitCode").start()
    assert group.launchers["worker-1"].wait(PATIENCE_S) == 127
    report = wait_for(lambda: group.control.last.get("gave_up") and group.control.last, what="the job given up")
    assert report["give_up_reason"]


PEERS = """
import os, signal, socket, sys, time
path = "../peers.sock"
if os.environ["RINGMASTER_ROUND"] != "1":
    time.sleep(1000)
if os.environ["RINGMASTER_RANK"] == "2":
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    peers = [server.accept()[0] for _ in range(2)]
    os.kill(os.getpid(), signal.SIGSEGV)
peer = socket.socket(socket.AF_UNIX)
while peer.connect_ex(path):
    time.sleep(0.005)
peer.recv(1)
os._exit(1)
"""


def test_the_first_to_fail_is_the_cause(make_group, wait_for):
    """The others lose their connection to it and fail within a millisecond."""
    group = make_group(three([sys.executable, "-c", PEERS])).start()
    wait_for(lambda: group.running() and group.control.last["round"] == 2, what="the second round")
    cause = rounds(group)[-1]
    assert (cause["role"], cause["index"], cause["signal"]) == ("worker", 1, 11)
    assert len(rounds(group)) == 1


def test_the_budget_ends_a_crash_loop(make_group, wait_for):
    once_the_chief_has_begun = 'while [ "$(grep -c start ../chief-0/out)" -lt "$RINGMASTER_ROUND" ]; do sleep 0.05; done; exit 1'
    group = make_group(three(worker_0=["sh", "-c", once_the_chief_has_begun]), policy={"backoffLimit": 2, "backoffBaseSeconds": 0}).start()
    assert group.launchers["worker-0"].wait(PATIENCE_S) == 1
    report = wait_for(lambda: group.control.last.get("gave_up") and group.control.last, what="the job given up")
    assert report["give_up_reason"] == "BackoffLimitExceeded"
    assert report["counters"]["restarts_counted"] == 2
    assert len(starts(group, "chief-0")) == 3


def test_a_process_that_ignores_sigterm_does_not_hold_up_the_restart(make_group, wait_for):
    deaf = ["sh", "-c", "trap '' TERM; echo start $RINGMASTER_ROUND; while :; do sleep 0.1; done"]
    group = make_group(three(worker_0=deaf)).start()
    before = wait_for(group.running, what="all running")
    all_have_started(group, 1)
    os.kill(before["chief-0"], signal.SIGKILL)
    wait_for(lambda: group.running() and group.control.last["round"] == 2, what="the second round")
    all_have_started(group, 2)
    assert [line.split()[1] for line in starts(group, "worker-0")] == ["1", "2"]


# ---- ends ------------------------------------------------------------------------------------------------------------------


def test_all_leave_with_0_when_all_are_done(make_group, wait_for):
    group = make_group({"chief-0": ["true"], "worker-0": ["sh", "-c", "sleep 0.5"], "worker-1": ["true"]}).start()
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [0, 0, 0]
    wait_for(lambda: all(m["state"] == "Done" for m in group.control.last["members"]), what="all reported done")


def test_who_is_done_is_held_and_runs_again_when_another_fails(make_group, wait_for):
    late = ["sh", "-c", '[ "$RINGMASTER_ROUND" = 1 ] || exit 0; while [ ! -e ../go ]; do sleep 0.05; done; exit 9']
    group = make_group(three(["sh", "-c", 'echo "start $RINGMASTER_ROUND"'], worker_1=late)).start()
    wait_for(lambda: group.state("chief-0") and group.state("chief-0")["state"] == "Done", what="the chief done")
    assert group.launchers["chief-0"].poll() is None
    (group.dir / "go").touch()
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [0, 0, 0]
    assert [line.split()[1] for line in starts(group, "chief-0")] == ["1", "2"]


def test_a_command_stops_all_and_nothing_starts_again(make_group, wait_for):
    group = make_group(three()).start()
    wait_for(group.running, what="all running")
    all_have_started(group, 1)
    group.control.send({"type": "command", "command": "stop", "grace_ms": 1000})
    wait_for(lambda: all(m["state"] == "Waiting" for m in group.control.last["members"]), what="all stopped")
    time.sleep(0.5)
    assert all(len(starts(group, m)) == 1 for m in group.members)
    assert group.control.last["counters"]["restarts"] == 0


def test_sigterm_to_all_launchers_is_no_failure(make_group, wait_for):
    group = make_group(three()).start()
    wait_for(group.running, what="all running")
    for process in group.launchers.values():
        process.terminate()
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [143, 143, 143]
    time.sleep(0.3)
    assert group.control.last["counters"]["restarts"] == 0


# ---- sidecars come and go --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["worker-0", "chief-0"])
def test_a_killed_sidecar_rejoins_and_all_start_again(make_group, wait_for, victim):
    group = make_group(three()).start()
    before = wait_for(group.running, what="all running")
    if victim == "chief-0":  # give its memory something to lose
        os.kill(before["worker-1"], signal.SIGKILL)
        before = wait_for(lambda: group.control.last["round"] == 2 and group.running(), what="the second round")
    round_before = group.control.last["round"]
    group.sidecars[victim].kill()
    group.sidecars[victim].wait()
    time.sleep(0.3)
    os.kill(before[victim], 0)  # the process outlives the sidecar
    group.control.reports.clear()
    group.start_sidecar(victim)
    after = wait_for(lambda: (now := group.running()) and not set(now.values()) & set(before.values()) and now, what="all running again")
    assert set(after) == set(group.members)
    report = group.control.last
    assert report["round"] > round_before
    cause = rounds(group)[-1]
    role, _, index = victim.rpartition("-")
    assert (cause["reason"], cause["role"], cause["index"]) == ("SidecarLost", role, int(index))
    assert report["counters"]["disruptions"] == 1
    if victim == "chief-0":
        assert report["counters"]["restarts"] == 2
        assert report["counters"]["restarts_counted"] == 1
        assert [r["round"] for r in rounds(group)] == [1, 2]
    assert all(process.poll() is None for process in group.launchers.values())


def test_a_silent_sidecar_is_lost(make_group, wait_for):
    group = make_group(three(), peer_timeout="2s").start()
    wait_for(group.running, what="all running")
    group.sidecars["worker-1"].send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: group.control.last["counters"]["restarts"] == 1, what="the loss noticed")
    finally:
        group.sidecars["worker-1"].send_signal(signal.SIGCONT)
    wait_for(lambda: group.running() and group.control.last["round"] >= 2, what="all running again")


def test_a_lost_coordinator_costs_one_restart_and_forgets_nothing(make_group, wait_for):
    """Its state comes back from the members: rounds, counters, numbers."""
    group = make_group(three()).start()
    first = wait_for(group.running, what="all running")
    os.kill(first["worker-0"], signal.SIGKILL)
    second = wait_for(lambda: (now := group.running()) and group.control.last["round"] == 2 and now, what="the second round")
    group.sidecars["chief-0"].kill()
    group.sidecars["chief-0"].wait()
    time.sleep(0.3)
    assert all(pathlib.Path(f"/proc/{pid}").exists() for m, pid in second.items() if m != "chief-0"), "processes are left alone meanwhile"
    group.start_sidecar("chief-0")
    wait_for(lambda: group.running() and group.control.last["round"] == 3, what="the third round")
    report = group.control.last
    assert [(r["round"], r["role"], r["index"], r["reason"]) for r in rounds(group)] == [
        (1, "worker", 0, rounds(group)[0]["reason"]), (2, "chief", 0, "SidecarLost")]
    assert (report["counters"]["restarts"], report["counters"]["restarts_counted"]) == (2, 1)


def test_a_coordinator_that_ends_with_the_job_done_releases_all_when_it_is_back(make_group, wait_for):
    late = ["sh", "-c", "while [ ! -e ../go ]; do sleep 0.05; done"]
    group = make_group({"chief-0": ["true"], "worker-0": late, "worker-1": ["true"]}).start()
    wait_for(lambda: group.state("worker-0") and group.state("worker-0")["state"] == "Running", what="worker-0 at work")
    wait_for(lambda: all(group.state(m)["state"] == "Done" for m in ("chief-0", "worker-1")), what="the others done")
    pid = group.state("worker-0")["pid"]
    group.sidecars["chief-0"].kill()
    group.sidecars["chief-0"].wait()
    (group.dir / "go").touch()
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), what="worker-0 done")
    group.start_sidecar("chief-0")
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [0, 0, 0]


def test_a_launcher_that_dies_stops_the_group_and_leaves_the_rest_to_the_reconciler(make_group, wait_for):
    group = make_group(three()).start()
    wait_for(group.running, what="all running")
    group.launchers["worker-1"].kill()
    wait_for(lambda: group.state("worker-1")["state"] == "Lost" and group.state("chief-0")["state"] == "Waiting", what="the others stopped")
    assert group.control.last["counters"]["restarts"] == 0


# ---- jobs with ps ----------------------------------------------------------------------------------------------------------


def test_with_ps_each_worker_is_restarted_alone(make_group, wait_for):
    group = make_group(dict.fromkeys(("chief-0", "worker-0", "ps-0"), SLEEP)).start()
    before = wait_for(group.running, what="all running")
    for number in (1, 2):
        wait_for(lambda n=number: len(starts(group, "worker-0")) == n, what="its words")
        os.kill(group.running()["worker-0"], signal.SIGKILL)
        wait_for(lambda n=number: group.control.last["counters"]["restarts"] == n and group.running(), what="restarted alone")
    wait_for(lambda: len(starts(group, "worker-0")) == 3, what="its words")
    after = group.running()
    assert (after["chief-0"], after["ps-0"]) == (before["chief-0"], before["ps-0"])
    assert after["worker-0"] != before["worker-0"]
    assert [line.split()[2] for line in starts(group, "worker-0")] == [str(1 << 32 | 1)] * 3
    numbers = [r["round"] for r in rounds(group)]
    assert len(numbers) == len(set(numbers)) == 2


def test_with_ps_a_coordinator_that_comes_back_leaves_all_at_work(make_group, wait_for):
    group = make_group(dict.fromkeys(("chief-0", "worker-0", "ps-0"), SLEEP)).start()
    before = wait_for(group.running, what="all running")
    group.sidecars["chief-0"].kill()
    group.sidecars["chief-0"].wait()
    group.control.reports.clear()
    group.start_sidecar("chief-0")
    assert wait_for(group.running, what="all running") == before


def test_with_ps_a_worker_that_is_done_leaves_at_once(make_group, wait_for):
    group = make_group({"chief-0": SLEEP, "worker-0": ["true"], "ps-0": SLEEP}).start()
    assert group.launchers["worker-0"].wait(PATIENCE_S) == 0
    assert group.launchers["chief-0"].poll() is None


def test_an_evaluator_is_restarted_alone(make_group, wait_for):
    group = make_group(dict.fromkeys(("chief-0", "worker-0", "evaluator-0"), SLEEP)).start()
    before = wait_for(group.running, what="all running")
    os.kill(before["evaluator-0"], signal.SIGKILL)
    wait_for(lambda: group.control.last["counters"]["restarts"] == 1 and group.running(), what="restarted alone")
    after = group.running()
    assert (after["chief-0"], after["worker-0"]) == (before["chief-0"], before["worker-0"])


# ---- clients ---------------------------------------------------------------------------------------------------------------

CLIENT = """
import ctypes, json, os, sys, time
rm = ctypes.CDLL(os.environ["CLIENT_LIBRARY"])
rm.rm_error_text.restype = ctypes.c_char_p
assert rm.rm_init(b"test 1.0") == 0, rm.rm_error_text()
values = (ctypes.c_float * 4)(*[rm.rm_rank() + 1.0] * 4)
handle = ctypes.c_uint64()
def reduce():
    assert rm.rm_allreduce(b"g", values, values, ctypes.c_uint64(4), 7, 1, ctypes.c_double(1), ctypes.c_double(1), None, None, ctypes.byref(handle)) == 0
    status = rm.rm_wait(handle, ctypes.c_int64(20000))
    if status != 0:
        print("lost", rm.rm_error_text().decode(), flush=True)
        sys.exit(3)
reduce()
print("sum", values[0], flush=True)
rm.rm_report(json.dumps({"step": 5, "total_steps": 10, "loss": 0.25, "step_ms": 12.5, "metrics": {"accuracy": 0.5}}).encode())
while os.environ["RINGMASTER_ROUND"] == "1" and not os.path.exists("../go"):
    time.sleep(0.01)
if os.environ["RINGMASTER_ROUND"] == "1" and rm.rm_rank() == 1:
    os.kill(os.getpid(), 9)
if os.environ["RINGMASTER_ROUND"] == "1":
    reduce()
time.sleep(1)
"""


def test_clients_reduce_report_and_lose_a_peer(make_group, wait_for, client_library, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(CLIENT)
    group = make_group(three([sys.executable, path]))
    group.env["CLIENT_LIBRARY"] = str(client_library)
    group.start()
    wait_for(lambda: group.state("chief-0") and group.state("chief-0")["step"] == 5, what="progress reported")
    member = group.state("chief-0")
    assert (member["total_steps"], member["loss"], member["step_ms"], member["attached"]) == (10, 0.25, 12.5, True)
    assert json.loads(member["metrics"])["accuracy"] == 0.5
    wait_for(lambda: group.state("worker-0")["operations"] >= 1, what="operations counted")
    (group.dir / "go").touch()
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [0, 0, 0]
    assert group.out("chief-0").splitlines()[0] == "sum 6.0"
    cause = rounds(group)[0]
    assert (cause["role"], cause["index"], cause["signal"], cause["lost_steps"]) == ("worker", 0, 9, 5)
    assert len(rounds(group)) == 1


SAVER = """
import ctypes, json, os, sys, time
rm = ctypes.CDLL(os.environ["CLIENT_LIBRARY"])
rm.rm_error_text.restype = ctypes.c_char_p
def check(status):
    assert status == 0, (status, rm.rm_error_text())
check(rm.rm_init(b"test 1.0"))
rank, round_ = rm.rm_rank(), int(os.environ["RINGMASTER_ROUND"])

def image(step):
    header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    header += b" " * (4096 - 8 - len(header))
    return len(header).to_bytes(8, "little") + header + bytes([rank, step]) * 4

resume = int(os.environ["RINGMASTER_RESUME_STEP"])
print("resume", resume, flush=True)
if resume >= 0:
    data, size, step, world = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int64(), ctypes.c_int()
    check(rm.rm_checkpoint_restore(ctypes.byref(data), ctypes.byref(size), ctypes.byref(step), ctypes.byref(world)))
    got = ctypes.string_at(data, size.value)
    assert (step.value, world.value, got) == (resume, rm.rm_size(), image(resume)), (step.value, world.value, got[-8:])
    rm.rm_checkpoint_restore_done()
    print("restored", flush=True)
else:
    for step in (10, 20):
        text, place, committed = image(step), ctypes.c_void_p(), ctypes.c_int64()
        check(rm.rm_checkpoint_begin(ctypes.c_int64(step), ctypes.c_uint64(len(text)), ctypes.byref(place)))
        ctypes.memmove(place, text, len(text))
        check(rm.rm_checkpoint_stage(ctypes.c_int64(step), ctypes.c_uint64(len(text))))
        rm.rm_report(json.dumps({"step": step}).encode())
        if step == 10:
            check(rm.rm_checkpoint_wait(ctypes.c_int64(20000), ctypes.byref(committed)))
            assert committed.value == 10, committed.value
    open(f"../staged-{rank}", "w").close()
    if rank == 0:
        while not all(os.path.exists(f"../staged-{other}") for other in range(rm.rm_size())):
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    time.sleep(1000)
check(rm.rm_shutdown())
"""


def test_what_all_have_staged_is_not_lost_with_the_processes(make_group, wait_for, client_library, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SAVER)
    group = make_group(three([sys.executable, path]))
    group.env["CLIENT_LIBRARY"] = str(client_library)
    group.start()
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [0, 0, 0]
    assert all(group.out(m).split() == ["resume", "-1", "resume", "20", "restored"] for m in group.members)
    report = group.control.last
    assert (report["checkpoint_step"], report["resume_step"], report["counters"]["streak"]) == (20, 20, 1)
    cause = rounds(group)[0]
    assert (cause["role"], cause["signal"], cause["lost_steps"]) == ("chief", 9, 0)


# ---- bad input -------------------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused(make_group, wait_for, tmp_path):
    group = make_group(three())
    other = tmp_path / "other-key"
    other.write_text(os.urandom(32).hex())
    group.extra["worker-1"] = {"RINGMASTER_KEY_FILE": str(other)}
    group.start()
    wait_for(lambda: "kind=denied" in group.log("worker-1"), what="the refusal seen by who was refused")
    wait_for(lambda: "connection refused" in group.log("chief-0"), what="the refusal seen by the coordinator")
    time.sleep(0.5)
    assert group.out("chief-0") == ""
    assert group.state("worker-1")["state"] == "Lost"


def test_strangers_that_say_nothing_cost_no_processor_time_and_go(make_group, wait_for):
    group = make_group(three(), wrap=["prlimit", "--nofile=64"])
    sidecar = group.start_sidecar("chief-0")
    wait_for(lambda: (group.dir / "chief-0/sidecar.sock").exists(), what="the sidecar up")
    strangers = [socket.create_connection((group.hosts["chief-0"], group.port)) for _ in range(90)]

    def cpu_seconds():
        fields = pathlib.Path(f"/proc/{sidecar.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = cpu_seconds()
    time.sleep(1)
    assert cpu_seconds() - before < 0.3
    for stranger in strangers:
        stranger.close()
    group.start_launcher("chief-0")
    group.start(["worker-0", "worker-1"])
    wait_for(group.running, what="all running")


def test_a_port_in_use_is_named(make_group, wait_for):
    group = make_group(three())
    group.start_sidecar("chief-0")
    wait_for(lambda: (group.dir / "chief-0/sidecar.sock").exists(), what="the sidecar up")
    env = group.member_env("chief-0")
    env["RINGMASTER_DIR"] = str(group.dir / "elsewhere")
    result = subprocess.run([group.sidecar_path], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 1
    assert f"{group.hosts['chief-0']}:{group.port}" in result.stderr
    assert "in use" in result.stderr


def test_a_second_sidecar_on_one_directory_is_refused(make_group, wait_for):
    group = make_group(three())
    group.start_sidecar("chief-0")
    wait_for(lambda: (group.dir / "chief-0/sidecar.sock").exists(), what="the socket")
    env = {**group.member_env("chief-0"), "RINGMASTER_ADDRESS": "127.0.0.77"}
    result = subprocess.run([group.sidecar_path], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 1
    assert "somebody listens on" in result.stderr


@pytest.mark.parametrize(
    "change, words",
    [
        ({"RINGMASTER_ROLE": "boss"}, 'RINGMASTER_ROLE: found'),
        ({"RINGMASTER_MEMBERS": "worker-0"}, "does not name this member"),
        ({"RINGMASTER_MEMBERS": ""}, "RINGMASTER_MEMBERS is not set"),
        ({"RINGMASTER_COORDINATOR": "nowhere"}, "expected HOST:PORT"),
        ({"RINGMASTER_KEY_FILE": "/no/such/key"}, "/no/such/key"),
        ({"RINGMASTER_POLICY": "{"}, "RINGMASTER_POLICY"),
        ({"RINGMASTER_COUNTERS": "["}, "RINGMASTER_COUNTERS"),
        ({"RINGMASTER_RANK": "1"}, "RINGMASTER_RANK"),
        ({"RINGMASTER_PORT": "70000"}, "RINGMASTER_PORT"),
        ({"RINGMASTER_CONTROL": "tcp:x"}, "RINGMASTER_CONTROL"),
    ],
)
def test_a_bad_setting_is_named(make_group, change, words):
    group = make_group(three())
    result = subprocess.run([group.sidecar_path], env={**group.member_env("chief-0"), **change}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode in (1, 2)
    assert words in result.stderr


def test_the_probe_tells_whether_it_is_up(make_group, wait_for):
    group = make_group(three())
    env = group.member_env("chief-0")
    down = subprocess.run([group.sidecar_path, "--probe"], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert down.returncode == 1
    assert "not up" in down.stderr
    group.start_sidecar("chief-0")
    wait_for(lambda: (group.dir / "chief-0/sidecar.sock").exists(), what="the socket")
    assert subprocess.run([group.sidecar_path, "--probe"], env=env, timeout=PATIENCE_S).returncode == 0


def test_sigterm_ends_an_idle_sidecar(make_group, wait_for):
    group = make_group(three()).start()
    wait_for(group.running, what="all running")
    for process in group.launchers.values():
        process.terminate()
        process.wait(PATIENCE_S)
    for process in group.sidecars.values():
        process.terminate()
    assert [p.wait(PATIENCE_S) for p in group.sidecars.values()] == [0, 0, 0]
    assert not list(pathlib.Path(group.dir).glob("*/sidecar.sock"))


def test_it_installs_the_client_files_and_runs_on(make_group, wait_for, tmp_path):
    group = make_group(three())
    env = group.member_env("chief-0")
    process = subprocess.Popen([group.sidecar_path, "--install", tmp_path / "shared"], env=env, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: (group.dir / "chief-0/sidecar.sock").exists(), what="the sidecar up")
        assert os.access(tmp_path / "shared/bin/ringmaster-launch", os.X_OK)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
