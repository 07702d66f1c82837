"""The operator on a real cluster: jobs of small shell programs, and everything that may happen to them.

TRAP: a shell as PID 1 ignores SIGTERM, so that pods end after their grace period of one second.
"""

import json
import re
import time

import pytest
from conftest import Kube, Operator, job, wait_until

FOREVER = "trap 'exit 143' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done"


def restarts_of(status):
    return status.get("restarts", 0)


# ---- a life --------------------------------------------------------------------------------------------------------------


def test_a_job_runs_to_its_end(kube, operator):
    kube.apply(job("life", workers=3, command=FOREVER, runPolicy={"cleanPodPolicy": "Running"}))
    status = kube.wait_phase("life", "Running")
    assert status["ready"] == "3/3" and status["attempt"] == 1 and status["replicaStatuses"]["Worker"]["active"] == 3
    kube.run("wait", "--for=condition=Running", "trainingjob/life", "--timeout=10s")
    pods = kube.pods("life")
    assert sorted(pods) == ["worker-0", "worker-1", "worker-2"]
    uid = kube.get("trainingjob", "life")["metadata"]["uid"]
    for pod in pods.values():
        owner = pod["metadata"]["ownerReferences"][0]
        assert owner["uid"] == uid and owner["controller"] and pod["spec"]["restartPolicy"] == "Never"

    hosts = [f"life-worker-{i}.life.{kube.namespace}.svc:2222" for i in range(3)]
    for i in range(3):
        config = json.loads(kube.shell(f"life-worker-{i}", "printf %s \"$TF_CONFIG\""))
        assert config == {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": i}} | ({"environment": "cloud"} if "environment" in config else {})
    kube.shell("life-worker-2", f"nslookup {hosts[0].split(':')[0]}.cluster.local")

    columns = kube.run("get", "tj").splitlines()
    assert columns[0].split() == ["NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE"] and columns[1].split()[1:3] == ["Running", "3/3"]

    kube.shell("life-worker-0", "touch /tmp/go")
    kube.run("wait", "--for=condition=Succeeded", "trainingjob/life", "--timeout=20s")
    wait_until("pods that still run are cleaned up", lambda: sorted(kube.pods("life")) == ["worker-0"])
    assert restarts_of(kube.status("life")) == 0
    reasons = {e["reason"] for e in kube.events("life")}
    assert {"TrainingJobCreated", "TrainingJobRunning", "TrainingJobSucceeded"} <= reasons

    kube.run("delete", "trainingjob", "life")
    wait_until("the children are gone", lambda: not kube.list("pods") and not [s for s in kube.list("services") if s["metadata"]["name"] == "life"])
    assert operator.metric("jobs_succeeded_total") == 1


def test_health_and_metrics(kube, operator):
    wait_until("ready", lambda: operator.http("/readyz")[0] == 200, 20)
    assert operator.http("/healthz") == (200, "ok\n")
    assert operator.http("/nothing")[0] == 404
    wait_until("leading", lambda: operator.metric("leader") == 1, 20)
    text = operator.http("/metrics")[1]
    assert "# TYPE ringmaster_reconcile_duration_seconds histogram" in text and "ringmaster_synced 1" in text
    named = re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.M)
    assert len(named) == len(set(named)), "the series of a metric stand together"
    sample = re.compile(r'(\w+?)(?:_bucket|_sum|_count)?(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? [0-9.e+-]+')
    for line in text.splitlines():
        assert line.startswith("# ") or sample.fullmatch(line), line


# ---- failures ------------------------------------------------------------------------------------------------------------


def test_a_permanent_exit_code_fails_the_job_with_the_log(kube, operator):
    kube.apply(job("permanent", restart="ExitCode", command="echo 'weights are NaN' >&2; exit 3"))
    status = kube.wait_phase("permanent", "Failed")
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "PermanentExitCode"
    failure = status["failures"][-1]
    assert failure["exitCode"] == 3 and failure["class"] == "User" and "weights are NaN" in failure["message"]
    assert failure["node"].startswith("node-") and failure["container"] == "main" and failure["pod"].startswith("permanent-worker-")
    assert "PermanentExitCode" in kube.run("get", "tj", "-o", "wide")
    assert [e for e in kube.events("permanent") if e["reason"] == "TrainingJobFailed" and e["type"] == "Warning"]


def test_a_signal_is_retried_as_a_group(kube, operator):
    command = '[ "$RINGMASTER_INDEX$RINGMASTER_ATTEMPT" = 11 ] && exit 137; [ $RINGMASTER_ATTEMPT = 1 ] && sleep 60; exit 0'
    kube.apply(job("signal", restart="ExitCode", command=command))
    status = kube.wait_phase("signal", "Succeeded")
    assert status["attempt"] == 2 and status["restarts"] == 1 and status["failures"][0]["exitCode"] == 137 and status["failures"][0]["signal"] == 9


def test_restarts_are_bounded(kube, operator):
    kube.apply(job("bounded", workers=1, command="exit 5", runPolicy={"backoffLimit": 1}, failurePolicy={"backoffBaseSeconds": 1}))
    status = kube.wait_phase("bounded", "Failed")
    assert next(c for c in status["conditions"] if c["type"] == "Failed")["reason"] == "BackoffLimitExceeded"
    assert len(status["failures"]) == 2 and status["attempt"] == 2


def test_a_deleted_pod_is_a_free_restart(kube, operator):
    kube.apply(job("gone", command=FOREVER, runPolicy={"backoffLimit": 0}))
    kube.wait_phase("gone", "Running")
    kube.run("delete", "pod", "gone-worker-1", "--wait=false")
    wait_until("the next attempt", lambda: kube.status("gone")["attempt"] == 2)
    status = kube.wait_phase("gone", "Running")
    assert status["restarts"] == 1 and status.get("restartsCountTowardsMax", 0) == 0
    assert all(p["metadata"]["labels"]["ringmaster.dev/attempt"] == "2" for p in kube.pods("gone").values())


def test_an_image_that_is_not_there_is_told(kube, operator):
    kube.apply(job("image", container={"image": "localhost/ringmaster/none:1"}, runPolicy={"schedulingPolicy": {"startTimeoutSeconds": 8}}))
    told = wait_until("the job is degraded", lambda: kube.condition("image", "Degraded"))
    assert "localhost/ringmaster/none:1" in told["message"]
    status = kube.wait_phase("image", "Failed")
    assert "Image" in status["failures"][-1]["reason"] or "Pull" in status["failures"][-1]["reason"]


def test_a_lost_node_is_left_behind(cluster, kube, operator):
    manifest = job("node", workers=3, command=FOREVER, failurePolicy={"nodeLost": {"forceDeleteAfterSeconds": 1}})
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
              "labelSelector": {"matchLabels": {"ringmaster.dev/job-name": "node"}}}
    manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["topologySpreadConstraints"] = [spread]
    kube.apply(manifest)
    kube.wait_phase("node", "Running")
    lost = kube.pods("node")["worker-1"]["spec"]["nodeName"]
    index = int(lost.rsplit("-", 1)[1])
    began = time.monotonic()
    cluster.node(index).kill()
    try:
        wait_until("the next attempt", lambda: kube.status("node")["attempt"] == 2, 60)
        noticed = time.monotonic() - began
        status = kube.wait_phase("node", "Running", timeout_s=60)
        print(f"node lost: noticed after {noticed:.1f} s, running again after {time.monotonic() - began:.1f} s")
        pods = kube.pods("node")
        assert len(pods) == 3 and all(p["spec"]["nodeName"] != lost for p in pods.values())
        assert status["failures"][-1]["reason"] in ("NodeLost", "DeletionByTaintManager") and status["failures"][-1]["class"] == "Infrastructure"
    finally:
        cluster.node(index).up()
        cluster.wait_ready()


# ---- the user changes his mind ----------------------------------------------------------------------------------------------


def test_suspend_and_resume(kube, operator):
    kube.apply(job("pause", command=FOREVER))
    kube.wait_phase("pause", "Running")
    kube.patch("pause", {"suspend": True})
    status = kube.wait_phase("pause", "Suspended")
    wait_until("no pod is left", lambda: not kube.list("pods"))
    assert next(c for c in status["conditions"] if c["type"] == "Suspended")["status"] == "True"
    kube.patch("pause", {"suspend": False})
    assert kube.wait_phase("pause", "Running")["attempt"] == 2


def test_a_job_that_is_born_suspended_has_no_pods(kube, operator):
    kube.apply(job("born", suspend=True))
    kube.wait_phase("born", "Suspended")
    assert not kube.list("pods")


def test_scale(kube, operator):
    kube.apply(job("scale", workers=1, command=FOREVER))
    kube.wait_phase("scale", "Running")
    kube.run("scale", "trainingjob/scale", "--replicas=3")
    wait_until("three pods", lambda: len(kube.pods("scale")) == 3 and kube.status("scale").get("ready") == "3/3")
    assert "worker-2" in kube.pods("scale")
    kube.run("scale", "trainingjob/scale", "--replicas=2")
    wait_until("two pods", lambda: len(kube.pods("scale")) == 2 and kube.status("scale").get("ready") == "2/2")
    assert kube.get("trainingjob", "scale")["status"]["replicas"] == 2


def test_time_to_live(kube, operator):
    kube.apply(job("ttl", workers=1, command="exit 0", runPolicy={"ttlSecondsAfterFinished": 3}))
    kube.wait_phase("ttl", "Succeeded")
    began = time.monotonic()
    wait_until("the job is gone", lambda: kube.get("trainingjob", "ttl") is None, 15)
    assert 1 < time.monotonic() - began < 8
    wait_until("its pods are gone", lambda: not kube.list("pods"))


def test_deadline(kube, operator):
    kube.apply(job("late", command=FOREVER, runPolicy={"activeDeadlineSeconds": 4}))
    status = kube.wait_phase("late", "Failed")
    assert next(c for c in status["conditions"] if c["type"] == "Failed")["reason"] == "DeadlineExceeded"
    assert not kube.pods("late")


def test_a_name_that_is_used_again_at_once(kube, operator):
    kube.apply(job("again", command=FOREVER))
    kube.wait_phase("again", "Running")
    first = kube.get("trainingjob", "again")["metadata"]["uid"]
    kube.run("delete", "trainingjob", "again", "--wait=false")
    kube.apply(job("again", command=FOREVER))
    kube.wait_phase("again", "Running")
    job_uid = kube.get("trainingjob", "again")["metadata"]["uid"]
    assert job_uid != first
    assert all(p["metadata"]["ownerReferences"][0]["uid"] == job_uid for p in kube.pods("again").values())


# ---- things in the way -----------------------------------------------------------------------------------------------------


def test_a_pod_of_somebody_else_has_the_name(kube, operator):
    kube.run("run", "theirs-worker-0", "--image=localhost/ringmaster/busybox:1", "--restart=Never", "--command", "--", "sleep", "3600")
    kube.apply(job("theirs", command=FOREVER))
    told = wait_until("the job is degraded", lambda: kube.condition("theirs", "Degraded"))
    assert "theirs-worker-0" in told["message"] and "not of this job" in told["message"]
    kube.run("delete", "pod", "theirs-worker-0", "--grace-period=0", "--force")
    kube.wait_phase("theirs", "Running")
    assert kube.condition("theirs", "Degraded")["status"] == "False"


def test_a_quota_that_is_used_up(kube, operator):
    kube.run("create", "quota", "few", "--hard=pods=1")
    kube.apply(job("quota", command=FOREVER))
    told = wait_until("the job is degraded", lambda: kube.condition("quota", "Degraded"))
    assert told["reason"] == "FailedCreatePod" and "exceeded quota" in told["message"]
    kube.run("delete", "quota", "few")
    kube.wait_phase("quota", "Running")


def test_a_job_of_another_controller_is_left_alone(kube, operator):
    kube.apply(job("other", managedBy="kueue.x-k8s.io/multikueue"))
    kube.apply(job("mine", command=FOREVER))
    kube.wait_phase("mine", "Running")
    assert kube.status("other") == {} and not kube.pods("other")


# ---- the operator and the API server die -----------------------------------------------------------------------------------


@pytest.mark.parametrize("after_ms", [0, 60, 150, 400])
def test_killed_while_it_creates(kube, operator, after_ms):
    kube.apply(job("many", workers=12, command=FOREVER))
    time.sleep(after_ms / 1000)
    operator.kill()
    operator.start()
    status = kube.wait_phase("many", "Running")
    assert status["attempt"] == 1 and restarts_of(status) == 0 and len(kube.pods("many")) == 12


def test_killed_while_it_restarts(kube, operator):
    kube.apply(job("twice", workers=4, command=FOREVER))
    kube.wait_phase("twice", "Running")
    kube.run("delete", "pod", "twice-worker-1", "--wait=false")
    wait_until("the restart is recorded", lambda: kube.status("twice")["attempt"] == 2, every_s=0.02)
    operator.kill()
    operator.start()
    status = kube.wait_phase("twice", "Running")
    assert status["attempt"] == 2 and status["restarts"] == 1 and len(kube.pods("twice")) == 4


def test_a_pod_that_vanished_while_nobody_looked(kube, operator):
    kube.apply(job("away", command=FOREVER))
    kube.wait_phase("away", "Running")
    operator.kill()
    kube.run("delete", "pod", "away-worker-0", "--grace-period=0", "--force")
    operator.start()
    wait_until("the next attempt", lambda: kube.status("away")["attempt"] == 2)
    kube.wait_phase("away", "Running")


def test_the_api_server_is_away(cluster, kube, operator):
    kube.apply(job("outage", command=FOREVER))
    kube.wait_phase("outage", "Running")
    cluster.processes.stop("kube-apiserver")
    time.sleep(6)
    assert operator.is_alive() or "the lease is lost" in operator.log()
    cluster.control.up()
    if not operator.is_alive():
        operator.start() # as its Deployment would
    wait_until("the API server answers", lambda: Kube(cluster).run("get", "--raw", "/readyz", check=False).returncode == 0)
    kube.shell("outage-worker-0", "touch /tmp/go")
    status = kube.wait_phase("outage", "Succeeded")
    assert restarts_of(status) == 0


def test_the_leader_dies_and_another_goes_on(cluster, kube, operator, tmp_path):
    wait_until("the first leads", lambda: operator.metric("leader") == 1, 20)
    second = Operator(cluster, tmp_path, "second", 18081).start()
    try:
        wait_until("the second is ready and waits", lambda: second.http("/readyz")[0] == 200 and second.metric("leader") == 0, 20)
        kube.apply(job("leader", command=FOREVER))
        kube.wait_phase("leader", "Running")
        assert second.metric("status_writes_total") == 0
        operator.kill()
        wait_until("the second leads", lambda: second.metric("leader") == 1, 20)
        kube.run("delete", "pod", "leader-worker-0", "--wait=false")
        wait_until("the next attempt", lambda: kube.status("leader")["attempt"] == 2)
        kube.wait_phase("leader", "Running")
    finally:
        second.stop()
        operator.start()
        wait_until("the first is up again", lambda: operator.http("/healthz")[0] == 200, 20)
