"""The demo's job on the cluster, as a user runs it: the operator installed by helm, `kubectl apply` of the example, real TensorFlow."""

import json
import pathlib
import re
import subprocess

import pytest
from conftest import ROOT, wait_until

EXAMPLE = ROOT / "examples" / "digits" / "trainingjob.yaml"
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden" / "digits-tf-config.json"
MEMBERS = ("chief-0", "worker-0", "worker-1", "worker-2")
PARAMETERS_BYTES = 4 * 100_000  # the network has more; each step reduces all of them


@pytest.fixture
def digits(kube, installed):
    """The example, applied as it stands; gone afterwards."""
    kube.run("apply", "-f", str(EXAMPLE))
    yield "digits"
    kube.run("delete", "-f", str(EXAMPLE), "--ignore-not-found")


def test_the_demo_trains_on_three_nodes(kube, installed, digits):
    pods = wait_until("four pods", lambda: len(found := kube.pods(digits)) == 4 and all("nodeName" in p["spec"] for p in found.values()) and found)
    assert sorted(pods) == sorted(MEMBERS)
    assert {p["spec"]["nodeName"] for p in pods.values()} == {"node-1", "node-2", "node-3"}

    golden = json.loads(GOLDEN.read_text().replace("NAMESPACE", kube.namespace))
    for member, pod in pods.items():
        container = next(c for c in pod["spec"]["containers"] if c["name"] == "tensorflow")
        assert json.loads(next(e["value"] for e in container["env"] if e["name"] == "TF_CONFIG")) == golden[member], member

    waiting = subprocess.Popen([*kube.program, "-n", kube.namespace, "wait", "--for=condition=Succeeded", f"trainingjob/{digits}", "--timeout=480s"])
    wait_until("the ring is proven", lambda: kube.condition(digits, "Cooperating") or kube.status(digits)["phase"] == "Failed", 240, 0.5)
    status = kube.wait_phase(digits, "Succeeded", timeout_s=480)
    assert waiting.wait(20) == 0
    assert status["attempt"] == 1 and status.get("restarts", 0) == 0 and not status.get("failures")

    ring = status["ring"]
    assert ring["size"] == 4 and ring["members"] == ",".join(MEMBERS) and ring["selfTestPassed"] is True, ring
    assert ring["operations"] >= 22 and ring["bytesReduced"] >= 22 * PARAMETERS_BYTES and ring["busBandwidth"] > 0, ring
    assert status["checkpoint"]["step"] > 0 and status["progress"]["step"] == status["progress"]["totalSteps"]

    logs = {member: kube.run("logs", f"{digits}-{member}") for member in MEMBERS}
    accuracy = float(re.search(r"test accuracy (\S+)", logs["chief-0"])[1])
    assert accuracy > 0.95
    weights = {member: re.search(r"rank (\d) of 4: weights ([0-9a-f]{64})", text) for member, text in logs.items()}
    assert [weights[m][1] for m in MEMBERS] == ["0", "1", "2", "3"]
    assert len({w[2] for w in weights.values()}) == 1, "the ranks end with different weights"
    print(f"accuracy {accuracy}, weights {weights['chief-0'][2][:12]}, ring {json.dumps(ring)}")

    assert "Succeeded" in kube.run("get", "tj", digits)
    kube.run("delete", "-f", str(EXAMPLE))
    wait_until("nothing is left", lambda: not [*kube.list("pods"), *kube.list("services"), *kube.list("secrets")], 60)
