"""Gang scheduling: gates with the cluster's own scheduler; Volcano and the scheduler plugins by their CRDs, their schedulers played by the test."""

import json
import time

import pytest
from conftest import PATIENT, job, wait_until

OPERATOR_OPTIONS = PATIENT
FOREVER = "trap 'exit 143' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done"
VOLCANO = ("scheduling.volcano.sh", "v1beta1")
PLUGINS = ("scheduling.x-k8s.io", "v1alpha1")


def gang(kind, **more):
    return {"schedulingPolicy": {"gang": kind, **more}}


def crd(group, version):
    """As much of the schedulers' CRDs as their controllers' contract has."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "minMember": {"type": "integer", "minimum": 1}, "queue": {"type": "string"}, "priorityClassName": {"type": "string"},
        "scheduleTimeoutSeconds": {"type": "integer"},
        "minResources": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}}}, "status": free}}
    versions = [{"name": version, "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}]
    # the group k8s.io is guarded: https://github.com/kubernetes/enhancements/pull/1111
    notes = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"} if "k8s.io" in group else {}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"podgroups.{group}", "annotations": notes},
            "spec": {"group": group, "scope": "Namespaced", "versions": versions,
                     "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}}}


@pytest.fixture
def scheduler(kube, request):
    """The CRD of a gang scheduler, there before the operator starts; its group's resource name for kubectl."""
    group, version = request.param
    kube.apply(crd(group, version))
    kube.run("wait", "--for=condition=Established", f"crd/podgroups.{group}", "--timeout=30s")
    yield f"podgroups.{version}.{group}"
    kube.run("delete", "crd", f"podgroups.{group}")


def say(kube, resource, name, phase, **more):
    kube.run("patch", resource, name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": {"phase": phase, **more}}))


def place(kube, name):
    """What a scheduler does: every pod gets a node."""
    for pod in kube.pods(name).values():
        if not pod["spec"].get("nodeName"):
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]},
                       "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}}
            kube.run("create", "--raw", f"/api/v1/namespaces/{kube.namespace}/pods/{pod['metadata']['name']}/binding", "-f", "-", stdin=json.dumps(binding))


@pytest.mark.parametrize("scheduler", [VOLCANO], indirect=True)
def test_volcano_is_found_and_admits_the_group_before_there_are_pods(kube, scheduler, operator):
    kube.apply(job("gang", workers=3, command=FOREVER, runPolicy=gang("Auto", queue="team-a")))
    group = wait_until("the group", lambda: kube.get(scheduler, "gang"))
    assert group["spec"]["minMember"] == 3 and group["spec"]["queue"] == "team-a"
    say(kube, scheduler, "gang", "Pending", conditions=[{"type": "Unschedulable", "status": "True", "message": "queue team-a is full"}])
    told = wait_until("the job says so", lambda: (c := kube.condition("gang", "GangScheduled")) and "queue team-a is full" in c["message"] and c)
    assert told["status"] == "False" and not kube.pods("gang")
    assert kube.status("gang")["gang"] == {"kind": "Volcano", "group": "gang", "phase": "Pending"}
    say(kube, scheduler, "gang", "Inqueue", conditions=[])
    wait_until("three pods", lambda: len(kube.pods("gang")) == 3)
    for pod in kube.pods("gang").values():
        assert pod["spec"]["schedulerName"] == "volcano" and pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "gang"
    place(kube, "gang")
    kube.wait_phase("gang", "Running")
    assert kube.condition("gang", "GangScheduled")["status"] == "True"
    kube.run("scale", "trainingjob/gang", "--replicas=2")
    wait_until("the group has the job's size", lambda: kube.get(scheduler, "gang")["spec"]["minMember"] == 2)
    wait_until("two new pods", lambda: len(kube.pods("gang")) == 2 and kube.status("gang")["attempt"] == 2)
    place(kube, "gang")
    kube.wait_phase("gang", "Running")
    kube.shell("gang-worker-0", "touch /tmp/go")
    kube.wait_phase("gang", "Succeeded")
    wait_until("the group goes with the pods", lambda: kube.get(scheduler, "gang") is None)


@pytest.mark.parametrize("scheduler", [PLUGINS], indirect=True)
def test_coscheduling_and_what_follows_from_its_silence(kube, scheduler, operator):
    kube.apply(job("plugins", command=FOREVER, runPolicy=gang("Coscheduling", scheduleTimeoutSeconds=600)))
    kube.apply(job("silent", command=FOREVER))
    wait_until("pods of the group", lambda: len(kube.pods("plugins")) == 2)
    assert kube.get(scheduler, "plugins")["spec"] == {"minMember": 2, "scheduleTimeoutSeconds": 600}
    for pod in kube.pods("plugins").values():
        assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "plugins"
    assert kube.get(scheduler, "silent") and not kube.pods("silent"), "a scheduler that was found has to answer first"
    status = kube.wait_phase("silent", "Running", timeout_s=60)
    assert status["gang"]["kind"] == "None" and "GangSchedulerSilent" in {e["reason"] for e in kube.events("silent")}


def test_a_scheduler_that_is_not_there_is_waited_for(kube, operator):
    kube.apply(job("missing", command=FOREVER, runPolicy=gang("Volcano")))
    told = wait_until("the job is degraded", lambda: kube.condition("missing", "Degraded"))
    assert told["reason"] == "GangSchedulerMissing" and "Volcano" in told["message"] and not kube.pods("missing")


def test_gates_hold_every_pod_until_all_are_there(kube, operator):
    kube.run("create", "quota", "few", "--hard=pods=2")
    kube.apply(job("gated", workers=3, command=FOREVER, runPolicy=gang("SchedulingGates")))
    wait_until("the job is degraded", lambda: (c := kube.condition("gated", "Degraded")) and c["reason"] == "FailedCreatePod")
    wait_until("two pods", lambda: len(kube.pods("gated")) == 2)
    time.sleep(2) # a scheduler that may place them has done so long before
    assert all(not p["spec"].get("nodeName") and p["spec"]["schedulingGates"] for p in kube.pods("gated").values())
    kube.run("delete", "quota", "few")
    status = kube.wait_phase("gated", "Running")
    assert status["restarts"] == 0 and not any(p["spec"].get("schedulingGates") for p in kube.pods("gated").values())


def test_two_jobs_that_do_not_fit_together_do_not_block_each_other(kube, operator):
    """Each needs two of three places: whoever cannot have both gives its one back."""
    kube.run("create", "quota", "few", "--hard=pods=3")
    command = "sleep 3; exit 0"
    for name in ("one", "two"):
        kube.apply(job(name, command=command, runPolicy={"cleanPodPolicy": "All", **gang("SchedulingGates", scheduleTimeoutSeconds=2)},
                       failurePolicy={"backoffBaseSeconds": 1, "backoffMaxSeconds": 4}))
    for name in ("one", "two"):
        kube.wait_phase(name, "Succeeded", timeout_s=90)


def test_pods_that_find_no_node_are_given_back(kube, operator):
    huge = {"resources": {"requests": {"cpu": "1000"}}}
    kube.apply(job("huge", command=FOREVER, container=huge, runPolicy={"schedulingPolicy": {"scheduleTimeoutSeconds": 3}}))
    wait_until("the next attempt", lambda: kube.status("huge").get("attempt") == 2, 30)
    failure = kube.status("huge")["failures"][0]
    assert failure["reason"] == "ScheduleTimeout" and failure["class"] == "Infrastructure" and "Insufficient cpu" in failure["message"]
    assert "Unschedulable" in {e["reason"] for e in kube.events("huge")}
