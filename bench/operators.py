"""The two operators that are compared, as processes on a benchmark's control plane, and the jobs that they are given."""

import base64
import json
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

from measure import cpu_seconds, peak_rss_mb, rss_mb
from plane import ROOT  # and with it tests/cluster on the path

import binaries  # noqa: E402
from shell import ClusterError, wait_for  # noqa: E402

OURS = ROOT / "build/bin/ringmaster-operator"
IMAGE = "python:3.12"
COMMAND = ["python", "/train.py"]


def _http(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return ""


class Process:
    """An operator that runs. `began` is when its process was started, `ready` when it said so."""

    def __init__(self, name, command, log, ready_url):
        self.name, self.log = name, log
        self.began = time.monotonic()
        with open(log, "wb") as out:
            self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            wait_for(f"{name} is ready", lambda: self.alive() and self.is_helped() and _http(ready_url) != "", 120, 0.01)
        except ClusterError as error:
            self.stop()
            raise ClusterError(f"{error}; its log ends:\n{log.read_text(errors='replace')[-2000:]}") from error
        self.ready = time.monotonic()

    def is_helped(self):
        """What has to be done for it while it starts."""
        return True

    def alive(self):
        if self.process.poll() is not None:
            raise ClusterError(f"{self.name} ended with {self.process.returncode}; its log ends:\n{self.log.read_text(errors='replace')[-2000:]}")
        return True

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def rss(self):
        return rss_mb(self.process.pid)

    def peak(self):
        return peak_rss_mb(self.process.pid)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


# ---- Ringmaster --------------------------------------------------------------------------------------------------------------


class Ringmaster(Process):
    def __init__(self, plane, name="ringmaster", port=18380, options=()):
        self.port = port
        command = [OURS, "--kubeconfig", plane.kubeconfig, "--listen", f"127.0.0.1:{port}", "--identity", name, *options]
        super().__init__(name, command, plane.state / f"{name}.log", f"http://127.0.0.1:{port}/readyz")

    def metric(self, name):
        for line in _http(f"http://127.0.0.1:{self.port}/metrics").splitlines():
            if line.startswith(f"ringmaster_{name} "):
                return float(line.split()[1])
        return 0.0

    def wait_leading(self):
        wait_for(f"{self.name} leads", lambda: self.metric("leader") == 1, 60, 0.02)
        return self


def training_job(replicas, ns, name="job-@I@", sidecar="None", frameworks=("TensorFlow",)):
    template = {"spec": {"containers": [{"name": "tensorflow", "image": IMAGE, "command": COMMAND}]}}
    return {"apiVersion": "ringmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name, "namespace": ns},
            "spec": {"sidecar": {"mode": sidecar}, "frameworks": list(frameworks),
                     "replicaSpecs": {"Worker": {"replicas": replicas, "restartPolicy": "OnFailure", "template": template}}}}


JOBS = "/apis/ringmaster.dev/v1alpha1/namespaces/{}/trainingjobs"

# ---- Kubeflow's training operator --------------------------------------------------------------------------------------------

PEER = f"kubeflow training-operator {binaries.PEER_VERSION}"
PEER_PORT = 18390
PEER_NAMESPACE = "kubeflow"
PEER_CERTIFICATES = pathlib.Path("/tmp/k8s-webhook-server/serving-certs")  # the only place where it looks


def install_peer(plane):
    """Its CRD, and what its certificates are put into. No webhook of it is asked about TFJobs: that is in its favour."""
    directory = binaries.ensure_peer()
    plane.install_crd(directory / "tfjobs.yaml", "tfjobs.kubeflow.org")
    webhook = {"name": "validator.pytorchjob.training-operator.kubeflow.org", "admissionReviewVersions": ["v1"],
               "sideEffects": "None", "failurePolicy": "Ignore",
               "clientConfig": {"service": {"name": "training-operator", "namespace": PEER_NAMESPACE, "path": "/validate-kubeflow-org-v1-pytorchjob"}},
               "rules": [{"apiGroups": ["kubeflow.org"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pytorchjobs"]}]}
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PEER_NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "training-operator-webhook-cert", "namespace": PEER_NAMESPACE}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
         "metadata": {"name": "validator.training-operator.kubeflow.org"}, "webhooks": [webhook]}]
    for item in items:  # in order: a List may come before its namespace
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(item))


class Peer(Process):
    """With the scheme of TFJobs alone, so that it watches nothing else."""

    def __init__(self, plane, options=()):
        self.plane = plane
        command = [binaries.ensure_peer() / "training-operator", "--kubeconfig", plane.kubeconfig, "--enable-scheme", "tfjob", "--metrics-bind-address",
                   f"127.0.0.1:{PEER_PORT}", "--health-probe-bind-address", f"127.0.0.1:{PEER_PORT + 1}", "--webhook-server-port", str(PEER_PORT + 2), *options]
        super().__init__("training-operator", command, plane.state / "training-operator.log", f"http://127.0.0.1:{PEER_PORT + 1}/readyz")

    def is_helped(self):
        """Its certificate as a file, as a kubelet mounts it: it starts no sooner."""
        secret = self.plane.request("GET", f"/api/v1/namespaces/{PEER_NAMESPACE}/secrets/training-operator-webhook-cert")
        for name, data in secret.get("data", {}).items():
            PEER_CERTIFICATES.mkdir(parents=True, exist_ok=True)
            (PEER_CERTIFICATES / name).write_bytes(base64.b64decode(data))
        time.sleep(0.1)
        return True


def tf_job(replicas, ns):
    template = {"spec": {"containers": [{"name": "tensorflow", "image": IMAGE, "command": COMMAND}]}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "job-@I@", "namespace": ns},
            "spec": {"tfReplicaSpecs": {"Worker": {"replicas": replicas, "restartPolicy": "OnFailure", "template": template}}}}


TF_JOBS = "/apis/kubeflow.org/v1/namespaces/{}/tfjobs"
