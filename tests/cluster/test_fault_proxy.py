"""Job traffic while everything between the operator and the API server goes wrong: nothing wrong is done, and nothing is lost.

Two operators, each with namespaces of its own: one behind HttpProxy (HTTP/1.1 over TLS: 429, 500, 410, resets, truncated and slow
answers, frames lost, torn, doubled, late and in another order), one behind TcpProxy (HTTP/2 as it is, its connections cut at any byte).

FAULT_SECONDS says for how long; 600 in make test-long-operator. FAULT_SEED repeats a run as far as threads let it.
"""

import itertools
import os
import random
import time

import pytest
from fault_proxy import Chaos, LateWatch, TcpProxy
from fault_world import FINAL, ROOT, Operator, World, in_lanes
from traffic import KINDS, QUIET_S, Traffic, history, name_of, run_one, wrong_lives

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))
SEED = int(os.environ.get("FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
DRIVERS = 3          # jobs under way in each namespace


@pytest.fixture(scope="module")
def world():
    made = World(ROOT / "build" / "api-server-faults", 6561, 24020)
    yield made
    made.close()


def test_a_watch_of_jobs_that_is_far_behind(world):
    """The operator knows what it has written, and what it was told when it asked, however late the watch tells of it."""
    ns, proxy = world.namespace("late"), world.proxy(tls=True)
    proxy.policy = LateWatch(2.5)
    operator = Operator(world.kubeconfig("late", f"https://127.0.0.1:{proxy.port}"), world.logs / "late.log", "--namespaces", ns,
        "--leader-elect=false").start()
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
