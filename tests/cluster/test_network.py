"""What a job's replicas find each other by, and who else may reach them."""

import json

from conftest import PATIENT, job, wait_until

OPERATOR_OPTIONS = PATIENT
FOREVER = "trap 'exit 143' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done"


def config(kube, pod):
    return json.loads(kube.shell(pod, "printf %s \"$TF_CONFIG\""))


def test_a_service_for_each_pod(kube, operator):
    kube.apply(job("each", command=FOREVER, network={"servicePerPod": True}))
    kube.wait_phase("each", "Running")
    hosts = [f"each-worker-{i}.{kube.namespace}.svc" for i in range(2)]
    assert config(kube, "each-worker-0")["cluster"]["worker"] == [f"{h}:2222" for h in hosts]
    for host in hosts:
        kube.shell("each-worker-1", f"nslookup {host}.cluster.local")
    kube.run("scale", "trainingjob/each", "--replicas=3")
    wait_until("three pods", lambda: kube.status("each").get("ready") == "3/3")
    kube.shell("each-worker-0", f"nslookup each-worker-2.{kube.namespace}.svc.cluster.local")
    kube.run("delete", "service", "each-worker-1")
    wait_until("it is made again", lambda: kube.get("service", "each-worker-1"))


def test_names_with_the_clusters_domain(kube, operator):
    kube.apply(job("domain", command=FOREVER, network={"clusterDomain": "cluster.local", "subdomain": "ring"}))
    kube.wait_phase("domain", "Running")
    host = f"domain-worker-1.ring.{kube.namespace}.svc.cluster.local"
    assert config(kube, "domain-worker-0")["cluster"]["worker"][1] == f"{host}:2222"
    kube.shell("domain-worker-0", f"nslookup {host}")


def test_the_ring_port_is_the_jobs_alone(kube, operator):
    sidecar = {"mode": "Auto", "ringPort": 7701, "image": "localhost/ringmaster/none:1"}
    manifest = job("closed", command=FOREVER, network={"networkPolicy": True}, sidecar=sidecar)
    kube.apply(manifest)
    wait_until("the pods are there", lambda: len(kube.pods("closed")) == 2)
    policy = kube.get("networkpolicy", "closed-ringmaster")
    uid = kube.get("trainingjob", "closed")["metadata"]["uid"]
    assert policy["metadata"]["ownerReferences"][0]["uid"] == uid
    assert policy["spec"]["podSelector"] == {"matchLabels": {"ringmaster.dev/job-uid": uid}}
    ring, others = policy["spec"]["ingress"]
    assert ring["ports"] == [{"protocol": "TCP", "port": 7701}] and ring["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
    assert {"protocol": "TCP", "port": 1, "endPort": 7700} in others["ports"] and "from" not in others
    kube.run("delete", "trainingjob", "closed")
    wait_until("it goes with the job", lambda: kube.get("networkpolicy", "closed-ringmaster") is None)


def test_mpirun_finds_its_hosts_and_nobody_takes_a_rank(kube, operator):
    env = [{"name": "RINGMASTER_RANK", "value": "7"}, {"name": "OMPI_COMM_WORLD_SIZE", "value": "99"}, {"name": "MINE", "value": "$(RINGMASTER_INDEX)"}]
    kube.apply(job("mpi", command=FOREVER, frameworks=["MPI"], container={"env": env}))
    kube.wait_phase("mpi", "Running")
    command = 'cat "$OMPI_MCA_orte_default_hostfile"; echo $RINGMASTER_RANK $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $MINE'
    told = kube.shell("mpi-worker-1", command).splitlines()
    assert told == [f"mpi-worker-{i}.mpi.{kube.namespace}.svc slots=1" for i in range(2)] + ["1 1 99 1"]
    events = {e["reason"]: e for e in kube.events("mpi")}
    assert events["EnvironmentReserved"]["type"] == "Warning" and "RINGMASTER_RANK" in events["EnvironmentReserved"]["message"]
    assert "OMPI_COMM_WORLD_SIZE" in events["EnvironmentOverridden"]["message"]
