"""Job traffic while everything between the operator and the API server goes wrong: nothing wrong is done, and nothing is lost.

Two operators, each with namespaces of its own: one behind HttpProxy (HTTP/1.1 over TLS: 429, 500, 410, resets, truncated and slow
answers, frames lost, torn, doubled, late and in another order), one behind TcpProxy (HTTP/2 as it is, its connections cut at any byte).

FAULT_SECONDS says for how long; 600 in make test-long-operator. FAULT_SEED repeats a run as far as threads let it.
"""

import itertools
import json
import os
import random
import threading
import time

import pytest
from fault_proxy import Chaos, LateWatch, TcpProxy
from fault_world import FINAL, ROOT, Operator, Refused, World, check_life, condition, in_lanes, job, outcome

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))
SEED = int(os.environ.get("FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
DRIVERS = 3          # jobs under way in each namespace
QUIET_S = 60         # for what is left, once the faults are over


@pytest.fixture(scope="module")
def world():
    made = World(ROOT / "build" / "api-server-faults", 6561, 24020)
    yield made
    made.close()


# ---- what the jobs do ----------------------------------------------------------------------------------------------------------


def succeeds(world, ns, name):
    world.submit(ns, job(name, workers=3, script={"*": {"*": 0}}, sidecar=True))
    return {"phase": "Succeeded", "attempt": 1, "restarts": 0, "counted": 0}


def restarts_twice(world, ns, name):
    world.submit(ns, job(name, script={"1": {"worker-1": 137}, "2": {"worker-0": 139}, "3": {"*": 0}}, restart="ExitCode"))
    return {"phase": "Succeeded", "attempt": 3, "restarts": 2, "counted": 2}


def uses_its_budget_up(world, ns, name):
    world.submit(ns, job(name, workers=1, script={"*": {"*": 1}}, runPolicy={"backoffLimit": 2}))
    return {"phase": "Failed", "attempt": 3, "counted": 2, "why": "BackoffLimitExceeded"}


def fails_for_good(world, ns, name):
    world.submit(ns, job(name, script={"*": {"worker-1": 3}}, restart="ExitCode"))
    return {"phase": "Failed", "attempt": 1, "restarts": 0, "why": "PermanentExitCode"}


def loses_a_pod(world, ns, name):
    world.submit(ns, job(name, script={"2": {"*": 0}}, runPolicy={"backoffLimit": 0}))
    world.wait_status(ns, name, "runs", lambda s: s.get("phase") == "Running" and condition(s, "PodsReady").get("status") == "True")
    world.api.quietly("DELETE", f"/api/v1/namespaces/{ns}/pods/{name}-worker-1")
    return {"phase": "Succeeded", "attempt": 2, "restarts": 1, "counted": 0}


def pauses(world, ns, name):
    world.submit(ns, job(name, script={"2": {"*": 0}}))
    world.wait_status(ns, name, "runs", lambda s: s.get("phase") == "Running")
    world.patch(ns, name, {"suspend": True})
    world.wait_status(ns, name, "is suspended", lambda s: s.get("phase") == "Suspended")
    world.patch(ns, name, {"suspend": False})
    return {"phase": "Succeeded", "attempt": 2, "restarts": 0, "counted": 0}


def is_deleted(world, ns, name):
    uid = world.submit(ns, job(name))
    world.wait_status(ns, name, "runs", lambda s: s.get("phase") == "Running")
    world.api.request("DELETE", world.path(ns, name))
    world.wait_gone(ns, name)
    world.wait_no_children(ns, uid)
    return None


KINDS = [succeeds, restarts_twice, uses_its_budget_up, fails_for_good, loses_a_pod, pauses, is_deleted]


def run_one(world, ns, kind, name, wait_s):
    """What is wrong with the job in the end; "" = nothing. Nothing is left of it then."""
    try:
        wanted = kind(world, ns, name)
        if wanted is None:
            return ""
        got = outcome(world.wait_final(ns, name, wait_s()))
        world.api.request("DELETE", world.path(ns, name))
        world.wait_no_children(ns, world.life(ns, name).uid)
        return "" if got.items() >= wanted.items() else f"{ns}/{name}: {json.dumps(got)}, expected {json.dumps(wanted)}"
    except (AssertionError, Refused) as error:
        return f"{ns}/{name}: {error}"


class Traffic:
    """Jobs, one after the other; what each came to."""

    def __init__(self, world, ns, until, counter) -> None:
        self.world, self.ns, self.until, self.counter, self.wrong, self.done = world, ns, until, counter, [], 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while time.monotonic() < self.until:
            number = next(self.counter)
            kind = KINDS[number % len(KINDS)]
            said = run_one(self.world, self.ns, kind, name_of(kind, number), lambda: max(self.until - time.monotonic(), 0) + QUIET_S)
            self.wrong += [said] if said else []
            self.done += 1


def name_of(kind, number):
    return f"{kind.__name__.replace('_', '-')}-{number}"


def wrong_lives(world, spaces):
    """What is wrong about everything that was ever seen in these namespaces."""
    wrong = [v for v in world.kubelet.violations if v.split("/")[0] in spaces or "itself" in v] + [str(w.error) for w in world.watchers if w.error]
    for (ns, name), life in world.record.lives.items():
        wrong += [f"{ns}/{name}: {w}" for w in check_life(life) if ns in spaces]
    return wrong + [f"left behind in {ns}: {p['metadata']['name']}" for ns in spaces for p in world.api.items(f"/api/v1/namespaces/{ns}/pods")]


def history(world, said, operators):
    """What is known of the job that `said` begins with."""
    ns, _, name = said.partition(":")[0].partition("/")
    life = world.record.lives.get((ns, name))
    if life is None:
        return ""
    steps = sorted([(v, f"{s.get('phase')} attempt {s.get('attempt')}") for v, s in life.states] + [(v, f"pod {n} of attempt {a}") for v, a, n in life.pods])
    lines = [line for o in operators for line in o.log().splitlines() if f"namespace={ns} job={name} " in line]
    return "\n".join([f"{v} {what}" for v, what in steps] + lines[-60:])


def test_a_watch_of_jobs_that_is_far_behind(world):
    """The operator knows what it has written, and what it was told when it asked, however late the watch tells of it."""
    ns, proxy = world.namespace("late"), world.proxy(tls=True)
    proxy.policy = LateWatch(2.5)
    operator = Operator(world.kubeconfig("late", f"https://127.0.0.1:{proxy.port}"), world.logs / "late.log", "--namespaces", ns, "--leader-elect=false").start()
    try:
        cases = [(kind, name_of(kind, number)) for number in (1, 2) for kind in KINDS]
        wrong = [w for w in in_lanes([ns] * len(cases), cases, lambda _, case: run_one(world, ns, *case, lambda: QUIET_S)) if w]
        wrong += wrong_lives(world, [ns])
    finally:
        code = operator.stop()
        proxy.close()
    assert not wrong, "\n".join(wrong) + "\n" + history(world, wrong[0], [operator])
    assert code == 0 and not operator.findings(), operator.findings()
    assert proxy.policy.writes > 30


def test_faults_change_nothing_but_time(world, tmp_path):
    print(f"\nFAULT_SEED={SEED} FAULT_SECONDS={SECONDS:.0f}")
    http, tcp = world.proxy(tls=True), TcpProxy(world.proxies, world.server.port, SEED)
    http.policy = Chaos(SEED)
    direct = world.server.kubeconfig.read_text()
    tcp_config = tmp_path / "tcp.kubeconfig"
    tcp_config.write_text(direct.replace(f":{world.server.port}", f":{tcp.port}"))
    spaces = {"http": [world.namespace("http-a"), world.namespace("http-b")], "tcp": [world.namespace("tcp-a")]}
    configs = {"http": world.kubeconfig("http", f"https://127.0.0.1:{http.port}"), "tcp": tcp_config}
    operators = {kind: Operator(configs[kind], world.logs / f"operator-{kind}.log", "--namespaces", ",".join(spaces[kind]), "--leader-elect=false").start()
                 for kind in spaces}
    until, counter = time.monotonic() + SECONDS, itertools.count()
    traffic = [Traffic(world, ns, until, counter) for names in spaces.values() for ns in names for _ in range(DRIVERS)]
    try:
        time.sleep(SECONDS)
        http.policy.on = tcp.on = False
        for t in traffic:
            t.thread.join(QUIET_S + 30)
        wrong = [w for t in traffic for w in t.wrong] + wrong_lives(world, [ns for names in spaces.values() for ns in names])
        wrong += [f"the {kind} operator ended by itself with {o.process.poll()}" for kind, o in operators.items() if not o.alive()]
        unfinished = [k for k, life in world.record.lives.items() if not life.gone and life.status.get("phase") not in FINAL]
        print(f"{sum(t.done for t in traffic)} jobs; HTTP faults {dict(sorted(http.policy.done.items()))}; {tcp.cuts} connections cut")
    finally:
        codes = {kind: o.stop() for kind, o in operators.items()}
        http.close()
        tcp.close()
    wrong += [o.findings() for o in operators.values() if o.findings()]
    assert not wrong, "\n".join(wrong) + "\n" + history(world, wrong[0], operators.values())
    assert not unfinished and not any(t.thread.is_alive() for t in traffic), unfinished
    assert set(codes.values()) == {0}, codes
    assert sum(http.policy.done.values()) > SECONDS and tcp.cuts > SECONDS / 10, "the proxies did next to nothing"
    assert sum(t.done for t in traffic) > SECONDS / 4
