"""A rank is lost in a job with an elasticPolicy: the others keep their processes and go on from the last commit."""

import re
import textwrap

import pytest

from conftest import ROOT
from group import Group

SCRIPT = """
import os, sys, time
import numpy as np, ringmaster as rm
from ringmaster import elastic
rm.init(process_sets=[[0, 1]] if os.environ.get("SETS") else None)
print("begun", os.getpid(), rm.rank(), flush=True)

@elastic.run
def train(state):
    while state.step < 40:
        total = rm.allreduce(np.array([float(state.step)]), op=rm.Sum, name="g")
        assert total[0] == state.step * rm.size(), (total, state.step)
        state.step += 1
        if state.step == 20 and rm.rank() == int(os.environ["VICTIM"]) and os.environ["RINGMASTER_ROUND"] == "1":
            os.kill(os.getpid(), 9)
        if state.step % 5 == 0:
            state.commit()
        time.sleep(0.005)
    return state.step

state = elastic.ObjectState(step=0)
state.register_reset_callbacks([lambda: print("reset", state.step, flush=True)])
print("done", train(state), os.getpid(), flush=True)
"""


@pytest.fixture
def run(keep, env, sidecar_path, launch_path, python_path, client_library, tmp_path, wait_for):
    def start(script, ranks, policy, until=None, **more):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        variables = {**env, "PYTHONPATH": str(ROOT / "client/python"), "RINGMASTER_LIBRARY_DIR": str(client_library.parent), **more}
        commands = {f"worker-{i}": [python_path, path] for i in range(ranks)}
        group = keep(Group(sidecar_path, launch_path, commands, env=variables, policy={"backoffBaseSeconds": 0, **policy})).start()
        ended = lambda group: all(p.poll() is not None for p in group.launchers.values())  # noqa: E731
        wait_for(lambda: (until or ended)(group), 200, "the end of the job")
        return group

    return start


@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_keep_their_processes(run, victim):
    group = run(SCRIPT, 3, {"elastic": True}, VICTIM=str(victim), SETS="1")
    for rank, member in enumerate(group.members):
        out = group.out(member)
        assert group.launchers[member].returncode == 0, out + group.logs()
        begun, done = re.findall(r"begun (\d+)", out), re.findall(r"done 40 (\d+)", out)
        assert done == begun[-1:], out
        assert len(begun) == (2 if rank == victim else 1), out
        assert ("reset" in out) == (rank != victim), out
    assert group.control.last["round"] == 2


def test_without_the_policy_every_process_is_started_again(run):
    group = run(SCRIPT, 2, {}, VICTIM="1")
    for member in group.members:
        assert group.launchers[member].returncode == 0
        assert len(re.findall(r"begun", group.out(member))) == 2


def test_a_rank_that_ended_well_fails_what_waits_for_it_by_name(run):
    group = run(
        """
        import sys, numpy as np, ringmaster as rm
        rm.init()
        rm.allreduce(np.ones(1), name="both")
        if rm.rank() == 1:
            sys.exit(0)
        try:
            rm.allreduce(np.ones(1), name="alone")
        except rm.LeftError as error:
            print(error, flush=True)
        """,
        2,
        {},
    )
    said = group.out("worker-0")
    assert '"allreduce.alone": rank 1 (worker-1) has ended its training process and takes no part' in said, said


def test_a_collective_that_stalls_is_told_of_and_ends(run):
    group = run(
        """
        import time, numpy as np, ringmaster as rm
        rm.init()
        if rm.rank() == 1:
            time.sleep(1000)
        try:
            rm.allreduce(np.ones((2, 3)), name="late")
        except rm.PeerLostError as error:
            print(error, flush=True)
        """,
        2,
        {"roles": {"Worker": {"replicas": 2, "restartPolicy": "Never", "containers": ["tensorflow"]}}},
        until=lambda group: "stalled" in group.out("worker-0"),
        RINGMASTER_STALL_WARNING="1s",
        RINGMASTER_STALL_SHUTDOWN="2s",
    )
    log = group.log("worker-0")
    assert 'msg="collective stalled" missing_rank=1' in log and re.search(r"has waited \d+ s for rank 1 \(worker-1\)", log), log
    assert "stalled" in group.out("worker-0") and "rank 1 (worker-1)" in group.out("worker-0"), group.out("worker-0")
