"""Several replicas of the operator, and one with the rights of a single namespace, under job traffic."""

import itertools
import signal
import time

import pytest
from fault_proxy import Policy
from fault_world import JOBS, ROOT, Operator, World, in_lanes, job
from shell import run
from traffic import KINDS, QUIET_S, Traffic, history, name_of, run_one, wrong_lives

KILLS = 5
NUMBERS = itertools.count()
MOST_S = 240         # jobs are made for as long as a test needs them: there is always something to write
LEASE = ("--lease-duration", "3s", "--lease-renew-deadline", "2s", "--lease-retry", "200ms", "--lease-namespace", "default")


@pytest.fixture(scope="module")
def world():
    made = World(ROOT / "build" / "api-server-replicas", 6563, 24040)
    yield made
    made.close()


class Writes(Policy):
    """When each write came, those of the Lease left out."""

    def __init__(self) -> None:
        self.seen = []

    async def before(self, request):
        if request.is_write and not request.is_lease:
            self.seen.append((time.monotonic(), str(request)))

    def since(self, at):
        return [what for when, what in self.seen if when >= at]


class Replica:
    def __init__(self, world, ns, name) -> None:
        self.world, self.name = world, name
        self.proxy = world.proxy()
        self.proxy.policy = Writes()
        config = world.kubeconfig(f"{ns}-{name}", f"http://127.0.0.1:{self.proxy.port}")
        self.operator = Operator(config, world.logs / f"{ns}-{name}.log", "--namespaces", ns, "--lease-name", f"lease-{ns}", "--identity", name,
            *LEASE).keep()

    def holds(self, ns) -> bool:
        lease = self.world.api.get(f"/apis/coordination.k8s.io/v1/namespaces/default/leases/lease-{ns}")
        return ((lease or {}).get("spec", {}).get("holderIdentity") or "").startswith(self.name + "_")


def wait(what, check, timeout_s=30, why=lambda: ""):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"{what}: not after {timeout_s} s\n{why()}"
        time.sleep(0.05)


@pytest.fixture
def pair(world, request):
    """Two replicas for a namespace of their own, and traffic in it; at the end everything has to be right."""
    ns = world.namespace("kill" if "killed" in request.node.name else "sleep")
    replicas = [Replica(world, ns, "one"), Replica(world, ns, "two")]
    wait("one leads", lambda: any(r.holds(ns) for r in replicas))
    until, counter = time.monotonic() + MOST_S, itertools.count()
    traffic = [Traffic(world, ns, until, counter) for _ in range(4)]
    yield ns, replicas
    for t in traffic:
        t.end()
    codes = [r.operator.stop() for r in replicas]
    wrong = [w for t in traffic for w in t.wrong] + wrong_lives(world, [ns]) + [r.operator.findings() for r in replicas if r.operator.findings()]
    assert not wrong, "\n".join(wrong) + "\n" + history(world, wrong[0], [r.operator for r in replicas])
    assert set(codes) <= {0}, codes
    assert sum(t.done for t in traffic) >= 4
    for r in replicas:
        r.proxy.close()


def give_work(world, ns, count):
    """Jobs that a leader has to say something about, also while all of the traffic waits for somebody else: the garbage collector, say."""
    for _ in range(count):
        world.submit(ns, job(f"at-rest-{next(NUMBERS)}", suspend=True))


def kill_while_it_writes(ns, leader, other):
    before = len(leader.proxy.policy.seen)
    give_work(leader.world, ns, 6)
    wait("it writes", lambda: len(leader.proxy.policy.seen) > before + 5)
    began = time.monotonic()
    leader.operator.kill()
    give_work(leader.world, ns, 1)
    wait("somebody writes", lambda: other.proxy.policy.since(began) or leader.proxy.policy.since(began + 3),
         why=lambda: "\n".join(f"--- {r.name}\n" + "\n".join(r.operator.log().splitlines()[-40:]) for r in (leader, other)))
    print(f"leader {leader.name} killed, writes again after {time.monotonic() - began:.1f} s")


def test_the_leader_is_killed_again_and_again(pair):
    ns, replicas = pair
    for _ in range(KILLS):
        wait("one leads", lambda: any(r.holds(ns) for r in replicas))
        leader = next(r for r in replicas if r.holds(ns))
        kill_while_it_writes(ns, leader, replicas[1 - replicas.index(leader)])


def test_a_leader_that_slept_writes_nothing_when_it_wakes(pair):
    ns, replicas = pair
    leader = next(r for r in replicas if r.holds(ns))
    other = replicas[1 - replicas.index(leader)]
    wait("it writes", lambda: len(leader.proxy.policy.seen) > 5)
    pid = leader.operator.process.pid
    leader.operator.process.send_signal(signal.SIGSTOP)
    wait("the other one leads and writes", lambda: other.holds(ns) and len(other.proxy.policy.seen) > 10)
    time.sleep(1)
    woken = time.monotonic()
    leader.operator.process.send_signal(signal.SIGCONT)
    wait("the one that slept ends and is started again", lambda: leader.operator.process.pid != pid)
    assert leader.operator.codes == [1] and "the lease is lost" in leader.operator.log()
    time.sleep(2)
    assert other.holds(ns) and other.operator.alive()
    assert not leader.proxy.policy.since(woken), leader.proxy.policy.since(woken)


def test_the_rights_of_one_namespace_are_enough(world, tmp_path):
    """The chart's Roles, no ClusterRole: every kind of job in its namespace, and nothing in another."""
    for name in ("role-mine", "role-other", "ringmaster-system"):
        world.namespace(name)
    rendered = run([world.server.programs / "helm", "template", "ringmaster", ROOT / "charts" / "ringmaster", "--namespace", "ringmaster-system",
        "--kube-version", "1.34.0", "--set",
                    "watchNamespaces={role-mine},watchNodes=false", "--show-only", "templates/rbac.yaml"], quiet=True)
    assert "ClusterRole" not in rendered
    world.server.kubectl("apply", "-f", "-", stdin=rendered)
    config = world.server.pki.kubeconfig("one-namespace", f"https://127.0.0.1:{world.server.port}",
        "system:serviceaccount:ringmaster-system:ringmaster-operator")
    operator = Operator(config, world.logs / "role.log", "--namespaces", "role-mine", "--watch-nodes=false", "--lease-namespace", "ringmaster-system",
                        "--lease-name", "ringmaster-operator").start()
    try:
        world.submit("role-other", job("not-ours"))
        cases = [(kind, name_of(kind, 1)) for kind in KINDS]
        wrong = [w for w in in_lanes(["role-mine"] * len(cases), cases, lambda ns, case: run_one(world, ns, *case, lambda: QUIET_S)) if w]
        wrong += wrong_lives(world, ["role-mine"])
        assert operator.alive(), operator.log()[-3000:]
    finally:
        code = operator.stop()
    assert not wrong, "\n".join(wrong) + operator.log()[-2000:]
    assert code == 0 and not operator.findings(), operator.findings()
    assert "forbidden" not in operator.log().lower(), [line for line in operator.log().splitlines() if "forbidden" in line.lower()][:5]
    assert "status" not in world.api.get(f"{JOBS}/namespaces/role-other/trainingjobs/not-ours")
