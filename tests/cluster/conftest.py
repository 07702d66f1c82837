"""What the tests on the real cluster share: the cluster itself, an operator as a process of the host, a namespace a test.

A cluster that was up before stays up; CLUSTER_KEEP=1 leaves one that the tests started, too. VARIANT=asan takes the programs of build/asan.
"""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import image  # noqa: E402
from cluster import Cluster  # noqa: E402
from installation import Installation  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "nodes: needs the cluster with its nodes; the others have API servers of their own and run beside it")


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items):
    """What needs the operator as a user installs it comes last, so that it is installed once."""
    def installed(module):
        return any("installation" in i.fixturenames and "uninstalled" not in i.fixturenames for i in items if i.module is module)

    for item in items:
        if "cluster" in item.fixturenames:
            item.add_marker("nodes")
    late = {module: installed(module) for module in {item.module for item in items}}
    items.sort(key=lambda item: late[item.module])


VARIANT = os.environ.get("VARIANT", "release")
BUILD = ROOT / "build" if VARIANT == "release" else ROOT / "build" / VARIANT
OPERATOR = BUILD / "bin" / "ringmaster-operator"
FINAL = ("Succeeded", "Failed")


def wait_until(what, check, timeout_s=60.0, every_s=0.1):
    """Waits until check() is true and returns what it gave. Its last value is in the error."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not after {timeout_s} s"
        time.sleep(every_s)


class Kube:
    """kubectl on the test cluster, in one namespace."""

    def __init__(self, cluster, namespace="default"):
        self.program = [str(cluster.programs / "kubectl"), "--kubeconfig", str(cluster.control.kubeconfig)]
        self.cluster, self.namespace = cluster, namespace

    def in_namespace(self, namespace):
        return Kube(self.cluster, namespace)

    def run(self, *arguments, stdin=None, check=True, timeout_s=120):
        done = subprocess.run([*self.program, "-n", self.namespace, *arguments], input=stdin, text=True, capture_output=True, timeout=timeout_s)
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout if check else done

    def get(self, kind, name):
        done = self.run("get", kind, name, "-o", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def list(self, kind, selector=""):
        return json.loads(self.run("get", kind, "-o", "json", *(["-l", selector] if selector else [])))["items"]

    def apply(self, manifest):
        return self.run("apply", "-f", "-", stdin=json.dumps(manifest))

    def patch(self, name, spec):
        self.run("patch", "trainingjob", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    # ---- jobs

    def status(self, name):
        job = self.get("trainingjob", name)
        return (job or {}).get("status", {})

    def condition(self, name, kind):
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), None)

    def wait_phase(self, name, *phases, timeout_s=60.0):
        def reached():
            status = self.status(name)
            phase = status.get("phase")
            ended_otherwise = phase in FINAL and phase not in phases
            assert not ended_otherwise, f"{name} is {phase}, not {phases}: {json.dumps(status, indent=1)}"
            return status if phase in phases else None

        try:
            return wait_until(f"{name} is {' or '.join(phases)}", reached, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {json.dumps(self.status(name), indent=1)}") from None

    def pods(self, name):
        """The pods of a job by member name, those that are being deleted left out."""
        found = {}
        for pod in self.list("pods", f"ringmaster.dev/job-name={name}"):
            labels = pod["metadata"]["labels"]
            if "deletionTimestamp" not in pod["metadata"]:
                found[f"{labels['ringmaster.dev/replica-type']}-{labels['ringmaster.dev/replica-index']}"] = pod
        return found

    def shell(self, pod, command, check=True):
        return self.run("exec", pod, "--", "sh", "-c", command, check=check)

    def events(self, name):
        return [e for e in self.list("events") if e["involvedObject"]["name"] == name and e["involvedObject"]["kind"] == "TrainingJob"]


class Operator:
    """ringmaster-operator as a process of the host."""

    def __init__(self, cluster, directory, name="operator", port=18080, address="127.0.0.1"):
        self.cluster, self.address, self.port, self.name = cluster, address, port, name
        self.log_path = directory / f"{name}.log"
        self.process = None
        self.options = []

    def start(self, *options):
        self.options = list(options) or self.options
        command = [str(OPERATOR), "--kubeconfig", str(self.cluster.control.kubeconfig), "--listen", f"{self.address}:{self.port}", "--log-level", "debug",
                   "--identity", self.name, "--lease-duration", "3s", "--lease-renew-deadline", "2s", "--lease-retry", "500ms", *self.options]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """An orderly end; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)

    def http(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.address}:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name):
        """The sum of its series; None when there is none."""
        lines = [line for line in self.http("/metrics")[1].splitlines() if line.startswith((f"ringmaster_{name} ", f"ringmaster_{name}{{"))]
        return sum(float(line.rsplit(maxsplit=1)[1]) for line in lines) if lines else None

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def is_alive(self):
        return self.process is not None and self.process.poll() is None


@pytest.fixture(scope="session")
def cluster():
    state = pathlib.Path(os.environ.get("CLUSTER_STATE", ROOT / "build" / "cluster")).resolve()
    made = Cluster(state, 3)
    keep = bool(os.environ.get("CLUSTER_KEEP")) or made.is_up()
    made.up()
    for node in made.nodes():
        node.add_image(image.build(state))
    kube = Kube(made)
    kube.run("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crd"))
    # `kubectl wait` fails on a CRD so new that it has no conditions yet
    established = ("wait", "--for=condition=Established", "crd/trainingjobs.ringmaster.dev", "--timeout=30s")
    wait_until("the CRD is established", lambda: kube.run(*established, check=False).returncode == 0, 30)
    yield made
    if not keep:
        made.down()


@pytest.fixture(scope="session")
def installation(cluster):
    """The operator that a user installs. One cluster has one operator: tests that run their own take this one away first, and tests
    that need it put it there when it is not; as many tests as possible share one installation."""
    made = Installation(cluster)
    was_there = made.is_there()
    yield made
    if was_there and not made.is_there():
        made.add()
    elif not was_there and made.is_there():
        made.remove()


@pytest.fixture
def installed(installation):
    """Installed by helm with the chart's defaults: two replicas, all namespaces."""
    installation.need()
    return installation


@pytest.fixture
def uninstalled(installation):
    if installation.is_there():
        installation.remove()


@pytest.fixture(scope="session")
def images(installation):
    """The images as `make images` builds them, on every node; their version."""
    return installation.load_images()


@contextlib.contextmanager
def namespace(cluster, name):
    """A namespace for as long as it is needed."""
    kube = Kube(cluster)
    kube.run("create", "namespace", name)
    wait_until("the namespace has its service account", lambda: Kube(cluster, name).get("serviceaccount", "default"))
    try:
        yield Kube(cluster, name)
    finally:
        kube.run("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def kube(cluster, request):
    """A namespace of the test's own; gone at the end. One that was of the same name may still be on its way out."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:44].strip("-")
    with namespace(cluster, f"t-{name}-{secrets.token_hex(3)}") as made:
        yield made


# of modules whose tests do not end the operator: a busy machine may keep an API server from answering for seconds
PATIENT = ("--lease-duration", "40s", "--lease-renew-deadline", "30s", "--lease-retry", "1s")


@pytest.fixture
def operator(cluster, uninstalled, tmp_path, request):
    """A module's OPERATOR_OPTIONS are given to it."""
    made = Operator(cluster, tmp_path).start(*getattr(request.module, "OPERATOR_OPTIONS", ()))
    yield made
    alive = made.is_alive()
    code = made.stop() if made.process else 0
    for word in ("Sanitizer", "runtime error:"):
        assert word not in made.log(), made.log()[-4000:]
    assert alive, f"the operator ended by itself with {code}:\n{made.log()[-4000:]}"
    assert code == 0, made.log()[-4000:]


def job(name, workers=2, command="sleep 3600", **spec):
    """A TrainingJob of busybox containers without sidecars. `spec` is merged over what is here; `restart` is the workers' policy."""
    restart = spec.pop("restart", "OnFailure")
    container = {"name": "main", "image": image.IMAGE, "command": ["sh", "-c", command]}
    container.update(spec.pop("container", {}))
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    manifest = {"apiVersion": "ringmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    manifest["spec"] = {"sidecar": {"mode": "None"}, "replicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": restart, "template": template}}}
    manifest["spec"].update(spec)
    return manifest
