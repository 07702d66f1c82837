"""The Helm chart and install.yaml on the real cluster: what they install, what they may do, what they leave."""

import json
import os
import pathlib
import re
import subprocess

import pytest
from conftest import ROOT, Kube, job, wait_until
from image import IMAGE

CHART = ROOT / "charts" / "ringmaster"
VERSION = re.search(r"^VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M).group(1)
CRD = "trainingjobs.ringmaster.dev"
RELEASE = "app.kubernetes.io/instance=ringmaster"
KINDS = ("deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets,networkpolicies,"
         "flowschemas,prioritylevelconfigurations,pods,leases")
NO_MONITORS = ("--set", "metrics.serviceMonitor.enabled=false,metrics.prometheusRule.enabled=false")  # no Prometheus operator there


class Helm:
    def __init__(self, cluster):
        self.environment = dict(os.environ, KUBECONFIG=str(cluster.control.kubeconfig), PATH=f"{cluster.programs}:{os.environ['PATH']}")

    def run(self, *arguments, check=True):
        done = subprocess.run(["helm", *arguments], env=self.environment, text=True, capture_output=True, timeout=240)
        if check:
            assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout if check else done


@pytest.fixture(scope="module")
def helm(cluster):
    return Helm(cluster)


@pytest.fixture(scope="module")
def package(cluster, helm, tmp_path_factory):
    """Where `make chart` leaves the package and install.yaml."""
    out = tmp_path_factory.mktemp("chart")
    done = subprocess.run([ROOT / "tools" / "chart.sh", "build", VERSION, out], env=helm.environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def namespaces(cluster):
    """Makes namespaces and removes them."""
    made = []

    def make(*names):
        for name in names:
            Kube(cluster).run("create", "namespace", name)
            made.append(name)
            wait_until("the namespace has its service account", lambda: Kube(cluster, name).get("serviceaccount", "default"))  # noqa: B023
        return [Kube(cluster, name) for name in names]

    yield make
    for name in made:  # gone before the next test makes it again
        Kube(cluster).run("delete", "namespace", name)


@pytest.fixture(scope="module")
def rendered_namespaces(cluster):
    """Those that the rendered charts name: the API server refuses objects of others, in a dry run too."""
    names = ("rendered", "team-a", "team-b")
    for name in names:
        Kube(cluster).run("create", "namespace", name)
    yield
    Kube(cluster).run("delete", "namespace", *names)


@pytest.fixture
def install(cluster, uninstalled, helm, package, images, namespaces):
    """Installs the chart in the namespace ringmaster-system; uninstalls it when the test did not."""
    def make(*options):
        helm.run("install", "ringmaster", str(package / f"ringmaster-{VERSION}.tgz"), "--namespace", "ringmaster-system", "--create-namespace",
                 "--take-ownership", "--wait", "--timeout", "120s", "--set", f"test.image={IMAGE}", *options)
        return Kube(cluster, "ringmaster-system")

    yield make
    helm.run("uninstall", "ringmaster", "--namespace", "ringmaster-system", "--wait", "--ignore-not-found")
    Kube(cluster).run("delete", "namespace", "ringmaster-system", "--ignore-not-found")


def left(cluster):
    """What carries the release's label, by kind/name."""
    listed = Kube(cluster).run("get", KINDS, "-A", "-l", RELEASE, "-o", "json")
    return sorted(f"{o['kind']}/{o['metadata']['name']}" for o in json.loads(listed)["items"])


def crd(cluster):
    return Kube(cluster).get("customresourcedefinition", CRD)


def leader(kube):
    """The pod that holds the Lease; its identity has a random word behind it."""
    return (((kube.get("lease", "ringmaster-operator") or {}).get("spec") or {}).get("holderIdentity") or "").partition("_")[0]


def with_sidecar(name, **spec):
    """Two workers that end well by themselves, each with sidecar and launcher."""
    return job(name, command="test -S /ringmaster/sidecar.sock && test \"$RINGMASTER_SIZE\" = 2", sidecar={"mode": "Native"}, **spec)


# ---- the API server reads it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [None, *sorted(p.name for p in (CHART / "ci").glob("*.yaml"))])
def test_the_api_server_takes_every_object(cluster, helm, rendered_namespaces, values):
    options = ["-f", str(CHART / "ci" / values), *NO_MONITORS] if values else []
    rendered = helm.run("template", "ringmaster", str(CHART), "--namespace", "rendered", "--kube-version", "1.34.0", *options)
    command = [*Kube(cluster).program, "apply", "--dry-run=server", "--validate=strict", "-f", "-"]  # objects of several namespaces
    done = subprocess.run(command, input=rendered, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "last-applied-configuration" not in line]  # the CRD is there already
    assert warnings == [], done.stderr
    assert "deployment.apps" in done.stdout


def test_values_that_are_not_there_are_refused(helm):
    for wrong in ("replica=3", "logLevel=loud", "watchNamespaces={Team_A}", "leaderElection.leaseDuration=fast", "replicas=0"):
        done = helm.run("template", "ringmaster", str(CHART), "--kube-version", "1.34.0", "--set", wrong, check=False)
        assert done.returncode != 0 and "values don't meet the specifications of the schema" in done.stderr, (wrong, done.stderr)


def test_the_crd_is_the_one_in_crd(helm):
    rendered = helm.run("template", "ringmaster", str(CHART), "--kube-version", "1.34.0", "-s", "templates/crd.yaml")
    kept = "  annotations:\n    helm.sh/resource-policy: keep\n"
    assert rendered.count(kept) == 1
    source = (ROOT / "crd" / "trainingjob.yaml").read_text()
    assert source.strip() in rendered.replace(kept, "")
    without = helm.run("template", "ringmaster", str(CHART), "--kube-version", "1.34.0", "-s", "templates/crd.yaml", "--set", "crds.keep=false")
    assert source.strip() in without


# ---- it runs -------------------------------------------------------------------------------------------------------------


def test_install_test_uninstall(cluster, helm, install, namespaces):
    system = install()
    pods = system.list("pods", RELEASE)
    assert len(pods) == 2 and len({p["spec"]["nodeName"] for p in pods}) == 2
    assert wait_until("one of them leads", lambda: leader(system)) in [p["metadata"]["name"] for p in pods]
    assert "Phase:          Succeeded" in helm.run("test", "ringmaster", "--namespace", "ringmaster-system")

    (team,) = namespaces("chart-a")
    team.apply(with_sidecar("hello"))
    status = team.wait_phase("hello", "Succeeded", timeout_s=90)
    assert status["ready"] and team.get("pod", "hello-worker-0")["spec"]["initContainers"][0]["image"] == f"ringmaster-sidecar:{VERSION}"

    held = leader(system)
    system.run("delete", "pod", held, "--wait=false")
    wait_until("the other one leads", lambda: leader(system) not in ("", held), 40)
    team.apply(with_sidecar("again"))
    team.wait_phase("again", "Succeeded", timeout_s=90)
    system.run("rollout", "status", "deployment/ringmaster-operator", "--timeout=60s")

    helm.run("uninstall", "ringmaster", "--namespace", "ringmaster-system", "--wait")
    wait_until("its pods are gone", lambda: left(cluster) == [])
    assert crd(cluster) and team.get("trainingjob", "hello"), "uninstalling must leave the CRD and the jobs"


def test_namespaces_of_its_own(cluster, install, namespaces):
    inside, outside = namespaces("chart-a", "chart-b")
    install("--set", "watchNamespaces={chart-a},watchNodes=false,replicas=1")
    assert not [name for name in left(cluster) if name.startswith("ClusterRole")]
    outside.apply(job("no", command="true"))
    inside.apply(job("yes", command="true"))
    inside.wait_phase("yes", "Succeeded", timeout_s=60)
    assert outside.status("no") == {} and outside.list("pods") == []
    account = "system:serviceaccount:ringmaster-system:ringmaster-operator"
    for verb, what, kube in (("list", "pods", outside), ("list", "secrets", inside), ("get", "nodes", inside), ("create", "deployments", inside)):
        assert kube.run("auth", "can-i", verb, what, f"--as={account}", check=False).stdout.strip() == "no", (verb, what)


def test_install_yaml_applies_and_deletes(cluster, uninstalled, package, images):
    kube = Kube(cluster, "ringmaster-system")
    manifest = str(pathlib.Path(package) / "install.yaml")
    try:
        kube.run("apply", "-f", manifest)
        kube.run("rollout", "status", "deployment/ringmaster-operator", "--timeout=120s")
        kube.run("apply", "-f", manifest)
        kube.run("delete", "-f", manifest, "--timeout=100s")
        assert crd(cluster) is None and left(cluster) == [] and kube.get("namespace", "ringmaster-system") is None
    finally:
        kube.run("delete", "-f", manifest, "--ignore-not-found")
        kube.run("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crd"))  # as the fixture `cluster` left it
