"""The operator of this checkout on the test cluster, as a user installs it: images on the nodes, the chart by helm."""

import filecmp
import os
import pathlib
import re
import subprocess
from typing import Sequence

from cluster import Cluster
from shell import ClusterError, ok, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "build" / "images"
NAMESPACE = "ringmaster-system"
RELEASE = "ringmaster"
DEPLOYMENT = "deployment/ringmaster-operator"
VERSION = re.search(r"^VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M).group(1)


class Installation:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.environment = {**os.environ, "KUBECONFIG": str(cluster.control.kubeconfig), "PATH": f"{cluster.programs}:{os.environ['PATH']}"}
        self.images_made = False
        self.is_current = False  # installed by us, with the chart's defaults


    def _make(self, *targets: str) -> None:
        """With the Makefile's own settings, whatever make or test run is around this one."""
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VARIANT", "BUILD")}
        done = subprocess.run(["make", "--no-print-directory", *targets], cwd=ROOT, env=environment, text=True, capture_output=True)
        if done.returncode != 0:
            raise ClusterError(f"make {' '.join(targets)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def load(self, *names: str) -> None:
        """Archives of build/images become known to every node; those that a node has already cost nothing."""
        for name in names:
            for node in self.cluster.nodes():
                there = node.directory / "images" / f"{name}.tar"
                if not there.exists() or not filecmp.cmp(IMAGES / f"{name}.tar", there, shallow=False):
                    node.add_image(IMAGES / f"{name}.tar")

    def load_images(self) -> str:
        """The images as `make images` and `make training-image` build them, on every node; once a process. Their version."""
        if not self.images_made:
            self._make("images", "training-image")
            self.load("ringmaster-operator", "ringmaster-sidecar", "ringmaster-examples")
            self.images_made = True
        return VERSION

    def is_there(self) -> bool:
        return ok(["helm", "status", RELEASE, "--namespace", NAMESPACE], env=self.environment)

    def add(self, options: Sequence[str] = ()) -> None:
        """Installs it, or brings what is there up to date; returns when it is ready."""
        self.load_images()
        self._make("chart")
        run(["helm", "upgrade", "--install", RELEASE, ROOT / "build" / f"ringmaster-{VERSION}.tgz", "--namespace", NAMESPACE,
             "--create-namespace", "--take-ownership", "--wait", "--timeout", "120s",
             "--set-string", f"podAnnotations.images={self._digest()}", *options], env=self.environment, quiet=True)
        self.is_current = True

    def need(self) -> None:
        """Adds it when this process has not."""
        if not self.is_current:
            self.add()

    def _digest(self) -> str:
        """Of what the node runs: a new build under the same version makes new pods."""
        done = run(["sha256sum", IMAGES / "ringmaster-operator.tar"], quiet=True)
        return done[:16]

    def remove(self) -> None:
        """The CRD and the jobs stay."""
        self.is_current = False
        run(["helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--ignore-not-found"], env=self.environment, quiet=True)
        self.cluster.control.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
