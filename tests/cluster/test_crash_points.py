"""The operator is killed before and after every write that it makes in the life of a job, and started again: nothing may differ but time.

Two lives. The first: created, a worker is killed, the group starts again, it succeeds, it is deleted by its time to live. The second: a
node is lost and its pod deleted by force, it is suspended, resumed, scaled, and fails for good when its budget is used up.

CRASH_POINTS=all takes every write of both lives (make test-long-operator); otherwise a spread sample of them.
"""

import functools
import json
import os
import time

import pytest
from fault_proxy import CrashAt
from fault_world import ROOT, VALGRIND, VARIANT, Operator, World, check_life, in_lanes, job, outcome

LANES = int(os.environ.get("CRASH_LANES", "4"))
ALL = os.environ.get("CRASH_POINTS") == "all"
SAMPLE = 10          # writes of each life, when not all
PORT = 18300


@pytest.fixture(scope="module")
def world():
    made = World(ROOT / "build" / "api-server-crash", 6560, 24010)
    yield made
    made.close()


class Lane:
    """A namespace with nodes, a proxy and, in each case, an operator of its own."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.ns, self.port = world, world.namespace(f"lane-{number}"), PORT + number
        self.proxy = world.proxy()
        self.kubeconfig = world.kubeconfig(self.ns, f"http://127.0.0.1:{self.proxy.port}")
        self.log = world.logs / f"{self.ns}.log"


@pytest.fixture(scope="module")
def lanes(world):
    return [Lane(world, i) for i in range(LANES)]


# ---- lives -----------------------------------------------------------------------------------------------------------------


def first_life(lane: Lane, name: str) -> str:
    world, ns = lane.world, lane.ns
    script = {"1": {"worker-1": 137}, "2": {"*": 0}}
    uid = world.submit(ns, job(name, script=script, sidecar=True, restart="ExitCode", runPolicy={"ttlSecondsAfterFinished": 0}))
    world.wait_gone(ns, name)
    return uid


def second_life(lane: Lane, name: str) -> str:
    world, ns = lane.world, lane.ns
    policy = {"backoffBaseSeconds": 0, "nodeLost": {"forceDeleteAfterSeconds": 0}, "avoidNodes": {"enabled": False}}
    uid = world.submit(ns, job(name, failurePolicy=policy, runPolicy={"backoffLimit": 1, "cleanPodPolicy": "All"}))

    def running(attempt: int, ready: str = "2/2"):
        world.wait_status(ns, name, f"runs in attempt {attempt}",
                          lambda s: s.get("phase") == "Running" and s.get("attempt") == attempt and s.get("ready") == ready)

    running(1)
    lost = world.kubelet.members(ns, name)["worker-1"].node.name
    world.kubelet.lose(lost)
    running(2)
    world.kubelet.bring_back(lost)
    world.patch(ns, name, {"suspend": True})
    world.wait_status(ns, name, "is suspended", lambda s: s.get("phase") == "Suspended")
    world.patch(ns, name, {"suspend": False})
    running(3)
    world.api.request("PATCH", world.path(ns, name) + "/scale", {"spec": {"replicas": 3}}, "application/merge-patch+json")
    attempt = world.wait_status(ns, name, "has three", lambda s: s.get("phase") == "Running" and s.get("ready") == "3/3")["attempt"]
    world.kubelet.end(ns, name, "worker-0", 1)
    running(attempt + 1, "3/3")
    world.kubelet.end(ns, name, "worker-2", 1)
    world.wait_final(ns, name)
    deadline = time.monotonic() + 30
    while pods := [c for c in world.children(ns, uid) if c.startswith("pods/")]:
        assert time.monotonic() < deadline, f"not cleaned up: {pods}"
        time.sleep(0.1)
    world.api.request("DELETE", world.path(ns, name))
    world.wait_gone(ns, name)
    return uid


LIVES = {"first": first_life, "second": second_life}
WANTED = {"first": {"phase": "Succeeded", "attempt": 2, "restarts": 1, "counted": 1},
          "second": {"phase": "Failed", "why": "BackoffLimitExceeded", "counted": 1}}
GENUINE = {  # what each life may tell, and how often at most
    "first": {"TrainingJobSucceeded": 1, "TrainingJobFailed": 0, "TrainingJobRestarting": 1},
    "second": {"TrainingJobFailed": 1, "TrainingJobSucceeded": 0},
}


def live(lane: Lane, life: str, name: str, policy: CrashAt, wrapper=()) -> dict:
    """One life under one policy: its outcome, and all that was wrong about it."""
    world = lane.world
    operator = Operator(lane.kubeconfig, lane.log, "--namespaces", lane.ns, "--leader-elect=false", "--listen", f"127.0.0.1:{lane.port}", wrapper=wrapper)
    policy.kill = operator.kill
    lane.proxy.policy = policy
    wrong, uid, events = [], None, {}
    began = time.monotonic()
    operator.keep()
    try:
        uid = LIVES[life](lane, name)
        world.wait_no_children(lane.ns, uid)
        events = world.events(lane.ns, uid)
    except AssertionError as error:
        wrong.append(str(error))
        for node in world.kubelet.nodes.values():
            if node.name.startswith(lane.ns) and not node.up:
                world.kubelet.bring_back(node.name)
    finally:
        fired, lane.proxy.policy = policy.fired, CrashAt()  # the end of the last process is an orderly one
        code = operator.stop()
    seen = world.record.lives[(lane.ns, name)]
    final = seen.final()
    wrong += check_life(seen) + ([] if final else ["it never ended"]) + ([] if code == 0 else [f"the operator ended with {code}"])
    if set(operator.codes) - {-9}:
        wrong.append(f"the operator ended by itself: {operator.codes}")
    if operator.findings():
        wrong.append(operator.findings())
    mine = [v for v in world.kubelet.violations if v.startswith(f"{lane.ns}/{name}-") or "itself" in v]
    return {"name": name, "wrong": wrong + mine, "outcome": outcome(final[1]) if final else None, "events": events, "writes": policy.writes,
            "fired": fired, "starts": operator.starts, "seconds": time.monotonic() - began}


@functools.lru_cache(maxsize=None)
def reference(lane: Lane, life: str) -> dict:
    told = live(lane, life, f"{life}-reference", CrashAt())
    assert not told["wrong"] and told["starts"] == 1, told
    assert told["outcome"].items() >= WANTED[life].items(), told
    print(f"\n{life} life: {len(told['writes'])} writes, {told['seconds']:.1f} s, {told['outcome']}, {told['events']}")
    return told


def compare(life: str, told: dict, wanted: dict) -> list:
    wrong = list(told["wrong"])
    if told["outcome"] != wanted["outcome"]:
        wrong.append(f"outcome {json.dumps(told['outcome'])}, without a crash {json.dumps(wanted['outcome'])}")
    # An event that was not sent is lost with the process; one that was sent is not sent again by the next.
    for reason, count in told["events"].items():
        if count > wanted["events"].get(reason, 0):
            wrong.append(f"event {reason} {count} times, without a crash {wanted['events'].get(reason, 0)} times")
    return wrong


def spread(count: int) -> list:
    return list(range(1, count + 1)) if ALL or count <= SAMPLE else sorted({1 + round(i * (count - 1) / (SAMPLE - 1)) for i in range(SAMPLE)})


@pytest.mark.parametrize("life", LIVES)
def test_a_crash_at_every_write(world, lanes, life):
    wanted = reference(lanes[0], life)
    cases = [(k, before) for k in spread(len(wanted["writes"])) for before in (True, False)]

    def one(lane: Lane, case) -> dict:
        k, before = case
        return live(lane, life, f"{life}-{k}-{'before' if before else 'after'}", CrashAt(k, before))

    began = time.monotonic()
    results = in_lanes(lanes, cases, one)
    crashed = sum(r["fired"] for r in results)
    print(f"{life} life: {len(cases)} cases, {crashed} crashes, {time.monotonic() - began:.0f} s, "
          f"the longest life {max(r['seconds'] for r in results):.1f} s")
    wrong = {r["name"]: (compare(life, r, wanted), r["writes"]) for r in results if compare(life, r, wanted)}
    assert not wrong, json.dumps(wrong, indent=1)
    assert crashed >= len(cases) * 0.8, "the cases did not crash the operator"


@pytest.mark.parametrize("life", LIVES)
def test_a_crash_after_each_single_write(world, lanes, life):
    """No process of the operator ever lives longer than one write: the job gets to its end all the same."""
    wanted = reference(lanes[0], life)
    told = live(lanes[0], life, f"{life}-each", CrashAt(every=True))
    print(f"{life} life: {told['fired']} crashes in a row")
    assert not compare(life, told, wanted), told
    assert told["fired"] >= 10


@pytest.mark.skipif(VARIANT != "release", reason="valgrind and sanitizers do not go together")
@pytest.mark.parametrize("life", LIVES)
def test_valgrind_finds_nothing(world, lanes, life):
    """Both lives with each access to memory checked: the operator ends with 99 when one was wrong, or something was leaked."""
    told = live(lanes[0], life, f"{life}-valgrind", CrashAt(), tuple(VALGRIND))
    assert not compare(life, told, reference(lanes[0], life)), told
