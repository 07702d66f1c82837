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
from fault_proxy import Chaos, TcpProxy
from fault_world import FINAL, ROOT, Operator, Refused, World, check_life, condition, job, outcome

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
            name = f"{kind.__name__.replace('_', '-')}-{number}"
            try:
                self._one(kind, name)
            except (AssertionError, Refused) as error:
                self.wrong.append(f"{self.ns}/{name}: {error}")
            self.done += 1

    def _one(self, kind, name) -> None:
        wanted = kind(self.world, self.ns, name)
        if wanted is None:
            return
        left = self.until - time.monotonic()
        got = outcome(self.world.wait_final(self.ns, name, max(left, 0) + QUIET_S))
        if not got.items() >= wanted.items():
            self.wrong.append(f"{self.ns}/{name}: {json.dumps(got)}, expected {json.dumps(wanted)}")
        uid = self.world.life(self.ns, name).uid
        self.world.api.request("DELETE", self.world.path(self.ns, name))
        self.world.wait_no_children(self.ns, uid)


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
        wrong = [w for t in traffic for w in t.wrong] + list(world.kubelet.violations) + [str(w.error) for w in world.watchers if w.error]
        for (ns, name), life in world.record.lives.items():
            wrong += [f"{ns}/{name}: {w}" for w in check_life(life)]
        wrong += [f"the {kind} operator ended by itself with {o.process.poll()}" for kind, o in operators.items() if not o.alive()]
        unfinished = [k for k, life in world.record.lives.items() if not life.gone and life.status.get("phase") not in FINAL]
        for ns in [ns for names in spaces.values() for ns in names]:
            wrong += [f"left behind in {ns}: {p['metadata']['name']}" for p in world.api.items(f"/api/v1/namespaces/{ns}/pods")]
        print(f"{sum(t.done for t in traffic)} jobs; HTTP faults {dict(sorted(http.policy.done.items()))}; {tcp.cuts} connections cut")
    finally:
        codes = {kind: o.stop() for kind, o in operators.items()}
        http.close()
        tcp.close()
    wrong += [o.findings() for o in operators.values() if o.findings()]
    assert not wrong, "\n".join(wrong)
    assert not unfinished and not any(t.thread.is_alive() for t in traffic), unfinished
    assert set(codes.values()) == {0}, codes
    assert sum(http.policy.done.values()) > SECONDS and tcp.cuts > SECONDS / 10, "the proxies did next to nothing"
    assert sum(t.done for t in traffic) > SECONDS / 4
