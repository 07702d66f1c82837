"""What becomes of pods: refused, deleted together, cleaned up; and what the job says of them."""

import pytest
from conftest import PATIENT, job, wait_until

OPERATOR_OPTIONS = PATIENT
FOREVER = "trap 'exit 143' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done"


def reason_of(status, kind="Failed"):
    return next(c for c in status["conditions"] if c["type"] == kind)


def test_a_pod_that_the_api_server_refuses_is_told_before_anything_is_made(kube, operator):
    mount = {"volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}
    kube.apply(job("refused", container=mount))
    status = kube.wait_phase("refused", "Failed")
    assert reason_of(status)["reason"] == "InvalidPod"
    told = reason_of(status, "Invalid")
    assert told["status"] == "True" and 'volumeMounts[0].name: Not found: "nowhere"' in told["message"]
    assert not kube.list("pods") and not kube.list("services") and not kube.list("secrets")
    assert any(e["type"] == "Warning" and "nowhere" in e["message"] for e in kube.events("refused"))


def test_of_jobs_that_are_alike_one_is_tried(kube, operator):
    for name in ("first", "second", "third"):
        kube.apply(job(name, workers=1, command=FOREVER))
        kube.wait_phase(name, "Running")
    kube.apply(job("other", workers=1, command=FOREVER, container={"env": [{"name": "A", "value": "B"}]}))
    kube.wait_phase("other", "Running")
    shown = [line for line in operator.log().splitlines() if "a pod is shown to the API server" in line]
    assert len(shown) == 2 and "first-worker-0" in shown[0] and "other-worker-0" in shown[1], shown


def test_policies_that_may_change_are_waited_for(kube, operator):
    kube.run("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply(job("strict", command=FOREVER))
    told = wait_until("the job is degraded", lambda: kube.condition("strict", "Degraded"))
    assert "violates PodSecurity" in told["message"] and kube.status("strict")["phase"] == "Pending"
    kube.run("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce-")
    kube.wait_phase("strict", "Running")


def test_a_group_restart_is_one_deletion(kube, operator):
    kube.apply(job("group", workers=6, command=FOREVER, failurePolicy={"restartStrategy": "RecreatePods"}))
    kube.wait_phase("group", "Running")
    kube.run("delete", "pod", "group-worker-3", "--wait=false")
    wait_until("the next attempt", lambda: kube.status("group").get("attempt") == 2)
    kube.wait_phase("group", "Running")
    assert "all pods of an attempt deleted" in operator.log() and 'name=group-worker' not in "".join(
        line for line in operator.log().splitlines() if '"pod deleted"' in line)
    assert all(p["metadata"]["labels"]["ringmaster.dev/attempt"] == "2" for p in kube.pods("group").values())


@pytest.mark.parametrize("policy, left", [("All", []), ("Running", ["worker-0"]), ("None", ["worker-0", "worker-1"])])
def test_what_is_left_of_a_job(kube, operator, policy, left):
    command = f'[ $RINGMASTER_INDEX = 0 ] && exit 0; {FOREVER}'
    kube.apply(job("left", command=command, runPolicy={"cleanPodPolicy": policy}))
    kube.wait_phase("left", "Succeeded")
    wait_until("so much is left", lambda: sorted(kube.pods("left")) == left and len(kube.list("pods")) == len(left))


def test_all_workers_have_to_end_where_that_is_asked_for(kube, operator):
    kube.apply(job("every", command=f'[ $RINGMASTER_INDEX = 0 ] && exit 0; {FOREVER}', successPolicy="AllWorkers"))
    wait_until("one is done", lambda: kube.status("every").get("replicaStatuses", {}).get("Worker", {}).get("succeeded") == 1)
    assert kube.status("every")["phase"] in ("Running", "Starting")
    kube.shell("every-worker-1", "touch /tmp/go")
    kube.wait_phase("every", "Succeeded")


def test_scale_within_the_bounds_of_the_elastic_policy(kube, operator):
    kube.apply(job("elastic", command=FOREVER, elasticPolicy={"minReplicas": 1, "maxReplicas": 3}))
    kube.wait_phase("elastic", "Running")
    refused = kube.run("scale", "trainingjob/elastic", "--replicas=4", check=False)
    assert refused.returncode != 0 and "elasticPolicy.maxReplicas must not be below" in refused.stderr
    kube.run("scale", "trainingjob/elastic", "--replicas=3")
    wait_until("three pods", lambda: kube.status("elastic").get("ready") == "3/3")
    scale = kube.run("get", "--raw", f"/apis/ringmaster.dev/v1alpha1/namespaces/{kube.namespace}/trainingjobs/elastic/scale")
    assert '"replicas":3' in scale and "ringmaster.dev/replica-type=worker" in scale


def test_memory_grows_with_each_time_that_it_was_too_little(kube, operator):
    policy = {"oomPolicy": {"action": "RestartWithMoreMemory", "factor": 2, "maxBytes": "96Mi"}, "backoffMaxSeconds": 1}
    small = {"resources": {"limits": {"memory": "16Mi"}}}
    command = "[ $RINGMASTER_ATTEMPT = 4 ] && exit 0; x=a; while :; do x=$x$x; done"
    kube.apply(job("memory", workers=1, command=command, container=small, failurePolicy=policy, runPolicy={"backoffLimit": 6, "cleanPodPolicy": "None"}))
    status = kube.wait_phase("memory", "Succeeded", timeout_s=90)
    assert [f["reason"] for f in status["failures"]] == ["OOMKilled"] * 3 and {f["class"] for f in status["failures"]} == {"OOM"}
    assert status["replicaStatuses"]["Worker"]["oomKills"] == 3
    limit = kube.pods("memory")["worker-0"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == "96Mi" or int(limit) == 96 << 20


def test_a_command_that_is_not_there_is_told_in_the_runtimes_words(kube, operator):
    kube.apply(job("typo", workers=1, container={"command": ["/bin/trian"]}, restart="Never"))
    status = kube.wait_phase("typo", "Failed")
    failure = status["failures"][-1]
    assert "trian" in failure["message"] and failure["exitCode"] in (127, 128) and failure["reason"] in ("StartError", "ContainerCannotRun")
    assert any("typo" in e["involvedObject"]["name"] and e["reason"] == "TrainingJobFailed" for e in kube.events("typo"))
