"""Whole jobs with sidecars on the real cluster: the ring, restarts in place, and the coordinator's channel to the operator."""

import base64
import hashlib
import json
import os
import socket

import pytest
from conftest import Operator, job, wait_until
from control_plane import HOST_IP

PORT = 18088
TRAIN = "echo round $RINGMASTER_ROUND; while [ ! -e /tmp/go ]; do sleep 0.1; done"


def ring(name, workers=3):
    manifest = job(name, workers=workers, command=TRAIN)
    manifest["spec"]["sidecar"] = {"mode": "Auto"}
    return manifest


@pytest.fixture
def operator(cluster, uninstalled, images, tmp_path):
    """One that pods can reach."""
    made = Operator(cluster, tmp_path, port=PORT, address=HOST_IP)
    made.start("--control-url", f"ws://{HOST_IP}:{PORT}", "--sidecar-image", f"ringmaster-sidecar:{images}", "--job-metrics")
    yield made
    assert made.is_alive(), made.log()[-4000:]
    assert made.stop() == 0
    assert "Sanitizer" not in made.log() and "runtime error:" not in made.log(), made.log()[-4000:]


def test_a_ring_forms_restarts_in_place_and_ends(kube, operator):
    kube.apply(ring("ring"))
    status = kube.wait_phase("ring", "Running", timeout_s=50)
    wait_until("the ring is proven in the status", lambda: kube.condition("ring", "Cooperating"))
    shown = kube.status("ring")["ring"]
    assert shown["size"] == 3 and status["attempt"] == 1
    assert operator.metric("coordinators") == 1 and operator.metric("job_ring_size") == 3
    uids = {member: pod["metadata"]["uid"] for member, pod in kube.pods("ring").items()}

    key = base64.b64decode(kube.get("secret", "ring-ringmaster")["data"]["key"]).decode()
    assert len(key) == 64 and key not in operator.log() and key not in json.dumps(kube.status("ring"))
    sidecar = next(c for c in kube.pods("ring")["worker-1"]["spec"]["initContainers"] if c["name"] == "ringmaster")
    assert sidecar["restartPolicy"] == "Always"

    # The launcher is process 1; its child is what trains.
    kube.shell("ring-worker-1", "for p in /proc/[1-9]*; do grep -q '^PPid:[[:space:]]*1$' $p/status && kill -9 ${p#/proc/}; done; true")
    wait_until("the end of the first round", lambda: kube.status("ring").get("round") == 1 and kube.status("ring")["phase"] == "Running")
    status = kube.status("ring")
    assert status["attempt"] == 1 and status["restarts"] == 1 and status["failures"][-1]["signal"] == 9
    assert {member: pod["metadata"]["uid"] for member, pod in kube.pods("ring").items()} == uids, "no pod was made anew"
    wait_until("the restart is counted", lambda: operator.metric("jobs_restarted_total") == operator.metric("restart_duration_seconds_count") == 1)

    operator.kill()
    operator.start()
    wait_until("the coordinator is back", lambda: operator.metric("coordinators") == 1, 40)
    assert kube.status("ring")["restarts"] == 1

    for i in range(3):
        kube.shell(f"ring-worker-{i}", "touch /tmp/go")
    assert kube.wait_phase("ring", "Succeeded")["restarts"] == 1


def test_a_pod_of_a_ring_is_deleted(kube, operator):
    kube.apply(ring("lost", workers=2))
    kube.wait_phase("lost", "Running", timeout_s=50)
    kube.run("delete", "pod", "lost-worker-0", "--wait=false")
    wait_until("the next attempt", lambda: kube.status("lost")["attempt"] == 2)
    status = kube.wait_phase("lost", "Running", timeout_s=50)
    assert status["restarts"] == 1 and status.get("restartsCountTowardsMax", 0) == 0


# What elastic.run does, by the C library: every rank asks, they agree by the sum of what they have heard, and go into the next round.
ELASTIC = r"""
import ctypes, os, time
rm = ctypes.CDLL(os.environ["RINGMASTER_LIBRARY_DIR"] + "/libringmaster.so")
rm.rm_error_text.restype = ctypes.c_char_p
def check(status):
    assert status >= 0, (status, rm.rm_error_text())
    return status
def total(name, value):
    heard, handle = (ctypes.c_float * 1)(value), ctypes.c_uint64()
    check(rm.rm_allreduce(name, heard, heard, ctypes.c_uint64(1), 7, 1, ctypes.c_double(1), ctypes.c_double(1), None, None, ctypes.byref(handle)))
    check(rm.rm_wait(handle, ctypes.c_int64(20000)))
    return heard[0]
check(rm.rm_init(b"test 1.0"))
check(rm.rm_hosts_listen())
print("begun", rm.rm_size(), flush=True)
while True:
    time.sleep(0.02)
    left = changed = False
    try:
        left = total(b"left", os.path.exists("/tmp/go")) > 0
        changed = total(b"changed", check(rm.rm_hosts_updated())) > 0
    except AssertionError:
        changed = True
    if left:
        break
    if changed:
        check(rm.rm_next_round())
        check(rm.rm_shutdown())
        check(rm.rm_init(b"test 1.0"))
        print("goes on", rm.rm_size(), flush=True)
check(rm.rm_shutdown())
"""


def test_an_elastic_job_changes_its_size_and_replaces_a_pod_while_the_others_stay(kube, operator):
    manifest = job("elastic", workers=2, container={"image": "ringmaster-examples:1", "command": ["python3", "-c", ELASTIC]})
    manifest["spec"]["sidecar"] = {"mode": "Auto"}
    manifest["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 4}
    kube.apply(manifest)

    def said(pod):
        return kube.run("logs", f"elastic-{pod}", "-c", "main", check=False).stdout.split("\n")[:-1]

    def wait_ring(size):
        wait_until(f"a ring of {size}", lambda: kube.status("elastic")["phase"] == "Running" and kube.status("elastic")["ring"]["size"] == size, 90)
        return {member: pod["metadata"]["uid"] for member, pod in kube.pods("elastic").items()}

    kube.wait_phase("elastic", "Running", timeout_s=90)
    first = wait_ring(2)
    wait_until("both listen", lambda: said("worker-0") == said("worker-1") == ["begun 2"], 60)
    kube.run("scale", "trainingjob", "elastic", "--replicas=3")
    grown = wait_ring(3)
    assert {member: grown[member] for member in first} == first and kube.status("elastic")["attempt"] == 1
    wait_until("the new one takes part", lambda: said("worker-2") == ["begun 3"], 60)
    assert said("worker-0") == said("worker-1") == ["begun 2", "goes on 3"], "their processes stayed"

    kube.run("delete", "pod", "elastic-worker-1", "--wait=false")
    wait_until("its successor", lambda: kube.pods("elastic").get("worker-1", {}).get("metadata", {}).get("uid", grown["worker-1"]) != grown["worker-1"], 60)
    wait_until("the successor takes part", lambda: said("worker-1") == ["begun 3"], 90)
    replaced = wait_ring(3)
    assert replaced["worker-0"] == grown["worker-0"] and replaced["worker-2"] == grown["worker-2"]
    assert said("worker-0") == ["begun 2", "goes on 3", "goes on 3"]
    status = kube.status("elastic")
    assert status["attempt"] == 1 and status["restarts"] == 1 and status["disruptions"] == 1, status

    kube.run("scale", "trainingjob", "elastic", "--replicas=1")
    wait_until("one pod", lambda: set(kube.pods("elastic")) == {"worker-0"}, 60)
    assert wait_ring(1)["worker-0"] == first["worker-0"]
    assert said("worker-0")[-1] == "goes on 1"
    kube.shell("elastic-worker-0", "touch /tmp/go")
    assert kube.wait_phase("elastic", "Succeeded")["attempt"] == 1


def handshake(path, token):
    """An open WebSocket to the operator, or the status line that it answered with."""
    key = base64.b64encode(os.urandom(16)).decode()
    s = socket.create_connection((HOST_IP, PORT), timeout=10)
    s.sendall((f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
               f"Sec-WebSocket-Protocol: ringmaster.dev\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer {token}\r\n\r\n").encode())
    head = s.recv(4096).decode(errors="replace")
    if " 101 " in head:
        proof = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        assert proof in head
    return s, head.split("\r\n")[0]


def test_a_stranger_is_turned_away(kube, operator):
    kube.apply(ring("guarded", workers=1))
    kube.wait_phase("guarded", "Running", timeout_s=50)
    for path in (f"/control/{kube.namespace}/guarded", f"/control/{kube.namespace}/nobody", "/control/x", "/"):
        s, _ = handshake(path, "0" * 64)
        with s:
            forged = json.dumps({"type": "state", "attempt": 1, "round": 99}).encode()
            try:
                s.sendall(bytes([0x81, 0x80 | len(forged), 0, 0, 0, 0]) + forged)
                while s.recv(4096):
                    pass  # until it is closed
            except ConnectionError:
                pass
    assert "could not prove its job" in operator.log()
    assert operator.metric("coordinators") == 1 and kube.status("guarded")["round"] == 0
