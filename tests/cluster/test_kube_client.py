"""lib/kube against a real API server: every verb, informers through kills, freezes and compaction, leases that fail over.

The program under test is tests/cluster/kube_client_check.c.
"""

import json
import os
import pathlib
import re
import subprocess
import time

import pytest
from api_server import ApiServer
from shell import wait_for

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("RINGMASTER_BUILD", ROOT / "build"))
PROGRAM = BUILD / "tests" / "cluster" / "kube_client_check"


@pytest.fixture(scope="module")
def server():
    state = ROOT / "build" / "api-server"
    if state.exists():
        ApiServer(state).stop()  # what a run that was killed has left
    made = ApiServer(state)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def ns(server, request):
    """A namespace of the test's own."""
    server.start()
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    server.kubectl("create", "namespace", name)
    return name


def environment(kubeconfig):
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}


def check(server, *arguments, kubeconfig=None, timeout=60):
    done = subprocess.run([PROGRAM, *arguments], env=environment(kubeconfig or server.kubeconfig), text=True, capture_output=True, timeout=timeout)
    print(done.stdout, done.stderr)
    return done


class Follower:
    """An informer in a process of its own."""

    def __init__(self, server, ns, *options):
        self.stderr = open(server.state / f"follow-{ns}.log", "w+")  # noqa: SIM115
        self.process = subprocess.Popen([PROGRAM, "follow", ns, *options], env=environment(server.kubeconfig), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr)
        assert self.process.stdout.readline() == "synced\n"

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != ".\n":
            assert line, self.log()
            lines.append(line.rstrip("\n"))
        return lines

    def dump(self):
        return dict(line.split("=", 1) for line in self.ask("dump"))

    def stats(self):
        return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", self.ask("stats")[0])}

    def log(self):
        self.stderr.seek(0)
        return self.stderr.read()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            assert self.process.wait(10) == 0, self.log()


@pytest.fixture
def follow(server):
    made = []

    def start(ns, *options):
        made.append(Follower(server, ns, *options))
        return made[-1]

    yield start
    for follower in made:
        follower.close()
        assert "Sanitizer" not in follower.log() and "runtime error" not in follower.log(), follower.log()


def config_maps(names, value):
    items = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": n}, "data": {"value": value}} for n in names]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def listed(server, ns):
    items = json.loads(server.kubectl("get", "configmaps", "-n", ns, "-o", "json"))["items"]
    return {i["metadata"]["name"]: i.get("data", {}).get("value", "") for i in items if i["metadata"]["name"] != "kube-root-ca.crt"}


def wait_equal(server, ns, follower, timeout_s=60):
    wanted = listed(server, ns)
    wait_for("the cache is what a fresh list says", lambda: follower.dump() == wanted, timeout_s, 0.2)
    return wanted


# ---- requests ------------------------------------------------------------------------------------------------------------


def test_verbs(server, ns):
    done = check(server, "verbs", ns)
    assert done.returncode == 0 and "FAILED" not in done.stdout and done.stdout.count("ok ") >= 25


def test_flood(server, ns):
    done = check(server, "flood", ns, "800")
    assert done.returncode == 0 and done.stdout.count(" 0 went wrong") == 2


def test_discovery(server):
    assert check(server, "discover").stdout == "deployments 1\nworkloads 0\nnamespaces 1\n"


def test_a_server_that_is_not_trusted_is_refused(server, ns, tmp_path):
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-keyout", tmp_path / "key", "-out", other],
                   check=True, capture_output=True)
    config = tmp_path / "config"
    config.write_text(server.kubeconfig.read_text().replace(str(server.pki.path("ca.crt")), str(other)))
    done = check(server, "verbs", ns, kubeconfig=config)
    assert done.returncode == 1 and "is not trusted" in done.stdout


def test_a_token_is_sent_and_a_wrong_one_explained(server, ns, tmp_path):
    server.kubectl("create", "serviceaccount", "checker", "-n", ns)
    server.kubectl("create", "clusterrolebinding", f"checker-{ns}", "--clusterrole=cluster-admin", f"--serviceaccount={ns}:checker")
    token = server.kubectl("create", "token", "checker", "-n", ns).strip()
    (tmp_path / "token").write_text(token + "\n")
    template = server.kubeconfig.read_text()
    user = re.search(r"user: \{client-certificate.*\}", template)[0]
    config = tmp_path / "config"
    config.write_text(template.replace(user, "user: {tokenFile: token}"))
    assert check(server, "verbs", ns, kubeconfig=config).returncode == 0
    config.write_text(template.replace(user, "user: {token: nonsense}"))
    done = check(server, "verbs", ns, kubeconfig=config)
    assert done.returncode == 1 and "does not know who we are" in done.stdout


def test_the_name_to_verify_can_be_another(server, ns, tmp_path):
    config = tmp_path / "config"
    config.write_text(server.kubeconfig.read_text().replace('cluster: {server', 'cluster: {tls-server-name: kubernetes.test, server'))
    assert check(server, "verbs", ns, kubeconfig=config).returncode == 0
    config.write_text(config.read_text().replace("kubernetes.test", "another.test"))
    done = check(server, "verbs", ns, kubeconfig=config)
    assert done.returncode == 1 and "is not trusted" in done.stdout


def test_certificates_may_be_inline(server, ns):
    inline = server.state / "inline.kubeconfig"
    inline.write_text(server.kubectl("config", "view", "--flatten", "--raw"))
    assert "client-key-data" in inline.read_text()
    assert check(server, "verbs", ns, kubeconfig=inline).returncode == 0


# ---- informers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("37",)], ids=["streaming", "pages"])
def test_an_informer_holds_what_is_there(server, ns, follow, options):
    server.kubectl("apply", "--server-side", "-n", ns, "-f", "-", stdin=config_maps([f"m-{i}" for i in range(120)], "one"))
    follower = follow(ns, *options)
    assert len(wait_equal(server, ns, follower)) == 120
    server.kubectl("apply", "--server-side", "-n", ns, "-f", "-", stdin=config_maps([f"m-{i}" for i in range(0, 120, 2)], "two"))
    server.kubectl("delete", "configmap", "-n", ns, "m-1", "m-3")
    assert len(wait_equal(server, ns, follower)) == 118
    stats = follower.stats()
    assert stats["lists"] == (0 if not options else 4) and stats["watches"] == 1 and stats["failures"] == 0


def test_nothing_is_lost_when_the_api_server_is_killed(server, ns, follow):
    server.kubectl("apply", "--server-side", "-n", ns, "-f", "-", stdin=config_maps([f"m-{i}" for i in range(20)], "one"))
    follower = follow(ns)
    for turn in range(3):
        server.kill()
        time.sleep(2)
        server.start()
        server.kubectl("apply", "--server-side", "-n", ns, "-f", "-", stdin=config_maps([f"m-{i}" for i in range(turn, 20, 3)], f"turn-{turn}"))
        server.kubectl("delete", "configmap", "-n", ns, f"m-{turn}")
        wait_equal(server, ns, follower)
    stats = follower.stats()
    print(stats)
    assert stats["failures"] > 0


def test_nothing_is_lost_when_versions_are_compacted_away(server, ns, follow):
    server.kubectl("apply", "--server-side", "-n", ns, "-f", "-", stdin=config_maps([f"m-{i}" for i in range(20)], "one"))
    follower = follow(ns)
    before = follower.stats()
    server.kill()
    server.start_etcd()
    os.kill(follower.process.pid, 19)  # it shall not come back before etcd has forgotten where it was
    server.start()
    server.kubectl("delete", "configmap", "-n", ns, "m-0", "m-1", "m-2")
    server.kubectl("apply", "--server-side", "-n", ns, "-f", "-", stdin=config_maps([f"n-{i}" for i in range(20)], "two"))
    server.compact()
    server.kill()
    server.start()
    os.kill(follower.process.pid, 18)
    wait_equal(server, ns, follower)
    after = follower.stats()
    print(before, after, follower.log())
    assert after["starts"] > before["starts"], "the old version was refused, and it listed anew"
    assert after["changes"] >= before["changes"] + 23, "what vanished was reported, and what came"


def test_a_server_that_hangs_is_noticed(server, ns):
    server.freeze(True)
    try:
        done = subprocess.Popen([PROGRAM, "lead", ns, "lease", "one"], env=environment(server.kubeconfig), text=True, stdout=subprocess.PIPE)
        time.sleep(3)
        assert done.poll() is None
    finally:
        server.freeze(False)
    assert done.stdout.readline() == "held\n"
    done.terminate()
    assert done.wait(10) == 0


# ---- leases --------------------------------------------------------------------------------------------------------------


def lead(server, ns, identity):
    return subprocess.Popen([PROGRAM, "lead", ns, "leader", identity], env=environment(server.kubeconfig), text=True, stdout=subprocess.PIPE)


def test_a_lease_passes_on(server, ns):
    first = lead(server, ns, "first")
    assert first.stdout.readline() == "held\n"
    second = lead(server, ns, "second")
    time.sleep(1.5)
    first.kill()
    first.wait()
    killed = time.monotonic()
    assert second.stdout.readline() == "held\n"
    took = time.monotonic() - killed
    assert 3 < took < 9, f"after {took:.1f} s; the lease is for 6 s"
    third = lead(server, ns, "third")
    time.sleep(1)
    second.terminate()
    given = time.monotonic()
    assert third.stdout.readline() == "held\n"
    print(f"after a kill {took:.1f} s, after an orderly end {time.monotonic() - given:.2f} s")
    assert time.monotonic() - given < 2
    assert second.wait(10) == 0
    holder = json.loads(server.kubectl("get", "lease", "leader", "-n", ns, "-o", "json"))["spec"]
    assert holder["holderIdentity"] == "third" and holder["leaseTransitions"] >= 2
    third.terminate()
    assert third.wait(10) == 0


def test_a_leader_that_cannot_reach_the_server_stops_in_time(server, ns):
    leader = lead(server, ns, "first")
    assert leader.stdout.readline() == "held\n"
    server.freeze(True)
    frozen = time.monotonic()
    try:
        assert leader.stdout.readline() == "lost\n"
        took = time.monotonic() - frozen
    finally:
        server.freeze(False)
    assert took < 4.5, f"after {took:.1f} s: others may take over after 6 s"
    assert leader.stdout.readline() == "held\n", "and comes back when nobody else took it"
    leader.terminate()
    assert leader.wait(10) == 0


