"""Volume claims of replicas: made with the pods, kept or deleted with replicas and job. There is no provisioner: volumes are made by hand."""

from conftest import PATIENT, job, wait_until

OPERATOR_OPTIONS = PATIENT
FOREVER = "trap 'exit 143' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done"


def claim(name, **policy):
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand", "resources": {"requests": {"storage": "1Mi"}}}
    return {"templates": [{"metadata": {"name": name}, "spec": spec}], "retentionPolicy": policy}


def volume(kube, claim_name):
    """A volume for one claim, on every node (they share a file system)."""
    name = f"{kube.namespace}-{claim_name}"[-60:].strip("-")
    spec = {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand", "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": kube.namespace, "name": claim_name}, "hostPath": {"path": f"/tmp/{name}", "type": "DirectoryOrCreate"}}
    kube.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "labels": {"test": kube.namespace}}, "spec": spec})


def claims(kube):
    return {c["metadata"]["name"]: c for c in kube.list("pvc") if "deletionTimestamp" not in c["metadata"]}


def manifest(name, policies, command=FOREVER, workers=2, **spec):
    made = job(name, workers=workers, command=command, volumeClaimPolicies=policies, **spec)
    container = made["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": p["templates"][0]["metadata"]["name"], "mountPath": "/" + p["templates"][0]["metadata"]["name"]} for p in policies]
    return made


def test_each_replica_has_its_claims_and_they_outlive_its_pods(kube, operator):
    policies = [claim("data", whenDeleted="Delete"), claim("kept")]
    for i in range(2):
        volume(kube, f"data-vol-worker-{i}")
        volume(kube, f"kept-vol-worker-{i}")
    try:
        kube.apply(manifest("vol", policies))
        kube.wait_phase("vol", "Running")
        found = claims(kube)
        assert sorted(found) == [f"{t}-vol-worker-{i}" for t in ("data", "kept") for i in range(2)]
        uid = kube.get("trainingjob", "vol")["metadata"]["uid"]
        assert found["data-vol-worker-0"]["metadata"]["ownerReferences"][0]["uid"] == uid
        assert "ownerReferences" not in found["kept-vol-worker-0"]["metadata"]

        kube.shell("vol-worker-1", "echo 17 >/data/step; echo 17 >/kept/step")
        kube.run("delete", "pod", "vol-worker-0", "--wait=false")
        wait_until("the next attempt", lambda: kube.status("vol")["attempt"] == 2)
        kube.wait_phase("vol", "Running")
        assert kube.shell("vol-worker-1", "cat /data/step /kept/step").split() == ["17", "17"]

        kube.run("delete", "trainingjob", "vol")
        wait_until("what goes with the job is gone", lambda: sorted(claims(kube)) == ["kept-vol-worker-0", "kept-vol-worker-1"])
        kube.apply(manifest("vol", [claim("kept")]))
        kube.wait_phase("vol", "Running")
        assert kube.shell("vol-worker-1", "cat /kept/step").strip() == "17", "a job of the same name finds what was kept"
    finally:
        kube.run("delete", "pv", "-l", f"test={kube.namespace}", "--wait=false")


def test_claims_of_replicas_that_are_no_more(kube, operator):
    policies = [claim("gone", whenScaled="Delete"), claim("kept")]
    for i in range(3):
        volume(kube, f"gone-less-worker-{i}")
        volume(kube, f"kept-less-worker-{i}")
    try:
        kube.apply(manifest("less", policies, workers=3))
        kube.wait_phase("less", "Running")
        kube.run("scale", "trainingjob/less", "--replicas=1")
        wait_until("one pod", lambda: len(kube.pods("less")) == 1 and kube.status("less").get("ready") == "1/1")
        wait_until("their claims are gone", lambda: sorted(claims(kube)) ==
                   ["gone-less-worker-0", "kept-less-worker-0", "kept-less-worker-1", "kept-less-worker-2"])
    finally:
        kube.run("delete", "pv", "-l", f"test={kube.namespace}", "--wait=false")


def test_a_claim_that_is_refused_is_told_and_nothing_is_started(kube, operator):
    kube.run("create", "quota", "few", "--hard=persistentvolumeclaims=1")
    kube.apply(manifest("full", [claim("data")]))
    told = wait_until("the job is degraded", lambda: kube.condition("full", "Degraded"))
    assert "PersistentVolumeClaim data-full-worker-" in told["message"] and "exceeded quota" in told["message"]
    assert not kube.pods("full")
