"""The coordinators' channel on the real cluster: TLS with the operator's own authority, through a Service in front of two operators of
which one leads; what comes down it; and everything on the way that may die. Two operators are processes of the host."""

import base64
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time

import image
import pytest
from conftest import Operator, job, wait_until
from control_plane import HOST_IP
from faults import Processes

HTTP, CHANNEL = (18090, 18091), (18443, 18444)
SECRET = "operator-tls"
FOREVER = "while [ ! -e /tmp/go ]; do sleep 0.1; done"
TRAINING = "ringmaster-examples:1"


def service(namespace):
    """A Service whose endpoints are the two processes: each has its own port, so each has its own slice."""
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "operator"}, "spec": {"ports": [{"name": "channel", "port": 8443}]}}
    for i, port in enumerate(CHANNEL):
        yield {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"name": "channel", "port": port}],
               "metadata": {"name": f"operator-{i}", "labels": {"kubernetes.io/service-name": "operator"}},
               "endpoints": [{"addresses": [HOST_IP], "conditions": {"ready": True}}]}


class Pair:
    """Two operators; which one leads is seen in their metrics."""

    def __init__(self, cluster, kube, directory, sidecar_image, *options):
        self.kube = kube
        self.operators = [Operator(cluster, directory, name=f"operator-{i}", port=HTTP[i], address=HOST_IP) for i in (0, 1)]
        for i, operator in enumerate(self.operators):
            operator.options = ["--namespaces", kube.namespace, "--lease-namespace", kube.namespace, "--tls-secret", SECRET,
                                "--control-url", f"wss://operator.{kube.namespace}.svc:8443", "--listen-control", f"{HOST_IP}:{CHANNEL[i]}",
                                "--sidecar-image", sidecar_image, *options]

    def start(self):
        for operator in self.operators:
            operator.start()
        return self

    def leader(self):
        return next((o for o in self.operators if o.is_alive() and o.metric("leader") == 1), None)

    def wait_leader(self):
        return wait_until("one of the operators leads", self.leader, 20)

    def has_coordinators(self, count):
        leader = self.leader()
        return leader is not None and leader.metric("coordinators") == count and leader

    def stop(self):
        for operator in self.operators:
            if operator.process is not None and operator.is_alive():
                operator.process.send_signal(signal.SIGCONT)
                operator.stop()

    def log(self):
        return "".join(o.log() for o in self.operators)


@pytest.fixture
def pair(cluster, uninstalled, kube, images, tmp_path):
    made = []

    def make(*options):
        for manifest in service(kube.namespace):
            kube.apply(manifest)
        made.append(Pair(cluster, kube, tmp_path, f"ringmaster-sidecar:{images}", *options).start())
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert "Sanitizer" not in one.log() and "runtime error:" not in one.log(), one.log()[-4000:]


def ring(name, workers=2, command=FOREVER, **more):
    manifest = job(name, workers=workers, command=command, **more)
    manifest["spec"]["sidecar"] = {"mode": "Auto"}
    return manifest


def secret(kube, name):
    return {key: base64.b64decode(value) for key, value in ((kube.get("secret", name) or {}).get("data") or {}).items()}


def shown_at(port):
    """The certificate that a server shows, whoever issued it; None when it does not."""
    try:
        return ssl.get_server_certificate((HOST_IP, port), timeout=3)
    except OSError:
        return None


def test_the_channel_ends_up_at_the_leader_whoever_dies(kube, pair):
    two = pair()
    kube.apply(ring("found"))
    kube.wait_phase("found", "Running", timeout_s=50)
    wait_until("the coordinator is at the leader", lambda: two.has_coordinators(1), 30)
    wait_until("the ring is proven", lambda: kube.condition("found", "Cooperating"))
    own = secret(kube, SECRET)
    assert sorted(own) == ["ca.crt", "ca.key", "tls.crt", "tls.key"] and secret(kube, "found-ringmaster")["ca.crt"] == own["ca.crt"]
    assert own["ca.key"].decode() not in two.log() and "PRIVATE KEY" not in two.log()
    follower = next(o for o in two.operators if o is not two.leader())
    assert wait_until("the follower shows the shared certificate", lambda: shown_at(CHANNEL[two.operators.index(follower)]), 10).strip() == \
        own["tls.crt"].decode().strip()
    assert follower.metric("coordinators") == 0, "one that does not lead takes nobody"

    killed = two.leader()
    began = time.monotonic()
    killed.kill()
    wait_until("the coordinator is at the new leader", lambda: two.has_coordinators(1), 40)
    print(f"leader killed: its coordinator is at the new one after {time.monotonic() - began:.1f} s")
    killed.start()

    hung = two.leader()
    began = time.monotonic()
    hung.process.send_signal(signal.SIGSTOP)  # its connections stay open, and nobody is behind them
    other = next(o for o in two.operators if o is not hung)
    wait_until("the other one leads", lambda: other.metric("leader") == 1, 20)
    wait_until("the coordinator has left the one that hangs", lambda: other.metric("coordinators") == 1, 60)
    print(f"leader hangs: its coordinator is at the new one after {time.monotonic() - began:.1f} s")
    hung.process.send_signal(signal.SIGCONT)
    wait_until("the one that lost the lease has ended", lambda: not hung.is_alive(), 20)

    # The coordinator itself: process 1 of the sidecar of rank 0.
    began = time.monotonic()
    kube.run("exec", "found-worker-0", "-c", "main", "--", "sh", "-c", "true")
    kill_sidecar(kube, "found-worker-0")
    wait_until("the round after it", lambda: kube.status("found").get("restarts", 0) >= 1, 40)
    kube.wait_phase("found", "Running", timeout_s=40)
    wait_until("the coordinator is back", lambda: other.metric("coordinators") == 1, 40)
    print(f"coordinator killed: back after {time.monotonic() - began:.1f} s")
    for i in range(2):
        kube.shell(f"found-worker-{i}", "touch /tmp/go")
    kube.wait_phase("found", "Succeeded")


@pytest.mark.parametrize("fault", ["process", "sidecar", "coordinator"])
def test_what_nobody_could_hear_is_in_the_status_all_the_same(kube, pair, fault):
    """No operator is there from before the restart in place until all pods are over: the coordinator's last word is in its pod."""
    two = pair()
    kube.apply(ring("untold"))
    kube.wait_phase("untold", "Running", timeout_s=60)
    wait_until("the coordinator is at the leader", lambda: two.has_coordinators(1), 40)
    for operator in two.operators:
        operator.kill()
    uid = kube.get("trainingjob", "untold")["metadata"]["uid"]
    found = [p for p in Processes().find() if p.get("JOB_UID") == uid and p.trains]
    trains = {p.member: p for p in sorted(found, key=lambda p: -int(p.started))}  # the launcher's child, and not what that has started
    assert sorted(trains) == ["worker-0", "worker-1"]
    if fault == "process":
        trains["worker-1"].kill()
    else:
        kill_sidecar(kube, "untold-worker-1" if fault == "sidecar" else "untold-worker-0")
    wait_until("the second round", lambda: {p.member for p in Processes().find() if p.get("JOB_UID") == uid and p.trains and p.get("ROUND") == "2"} ==
               set(trains), 60)
    for i in range(2):
        kube.shell(f"untold-worker-{i}", "touch /tmp/go")
    wait_until("all pods are over", lambda: {p["status"]["phase"] for p in kube.list("pods")} == {"Succeeded"}, 60)
    two.start()
    status = kube.wait_phase("untold", "Succeeded", timeout_s=60)
    by_user = int(fault == "process")
    assert (status["restarts"], status["restartsCountTowardsMax"], status["disruptions"]) == (1, by_user, 1 - by_user), status
    told = [(f["role"], f["index"], f.get("exitCode")) for f in status["failures"]]
    assert told == [("Worker", 0 if fault == "coordinator" else 1, 137 if by_user else None)], status["failures"]


def kill_sidecar(kube, pod):
    """SIGKILL from outside the pod: process 1 of a container cannot be killed from inside. The processes of the nodes are the host's."""
    uid = kube.get("pod", pod)["metadata"]["uid"]
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as f:
                is_sidecar = f.read().startswith(b"/usr/local/bin/ringmaster-sidecar")
            with open(f"/proc/{entry}/cgroup", encoding="utf-8") as f:
                is_of_pod = uid in f.read()
        except OSError:
            continue
        if is_sidecar and is_of_pod:
            os.kill(int(entry), signal.SIGKILL)
            return
    raise AssertionError(f"no sidecar of {pod} among the processes")


def test_certificates_are_renewed_and_an_authority_may_be_replaced(kube, pair, tmp_path):
    two = pair("--certificate-lifetime", "30s")
    kube.apply(ring("renewed", workers=1))
    kube.wait_phase("renewed", "Running", timeout_s=50)
    wait_until("connected", lambda: two.has_coordinators(1), 30)
    first, authority = secret(kube, SECRET)["tls.crt"], secret(kube, SECRET)["ca.crt"]
    renewed = wait_until("another certificate", lambda: secret(kube, SECRET)["tls.crt"] != first and secret(kube, SECRET), 40)
    assert renewed["ca.crt"] == authority
    port = CHANNEL[two.operators.index(two.leader())]
    wait_until("it is shown without a restart", lambda: shown_at(port) and shown_at(port).encode().strip() != first.strip(), 10)
    assert two.leader().metric("coordinators") == 1, "connections outlive a renewal"

    # What is expired is replaced, and never shown.
    expired = make_expired(tmp_path, f"operator.{kube.namespace}.svc")
    patch = {key: base64.b64encode(text).decode() for key, text in expired.items()}
    kube.run("patch", "secret", SECRET, "--type=merge", "-p", json.dumps({"data": patch}))
    wait_until("the leader has replaced it", lambda: secret(kube, SECRET)["tls.crt"] != expired["tls.crt"], 20)
    assert shown_at(port).encode().strip() != expired["tls.crt"].strip()

    # Without its data the Secret gets a new authority. Jobs at work learn of it by their own Secret, as fast as the kubelet brings it.
    kube.run("patch", "secret", SECRET, "--type=json", "-p", '[{"op": "remove", "path": "/data"}]')
    fresh = wait_until("a new authority", lambda: secret(kube, SECRET).get("ca.crt") not in (None, authority) and secret(kube, SECRET), 20)
    wait_until("the job's Secret has it", lambda: secret(kube, "renewed-ringmaster")["ca.crt"] == fresh["ca.crt"], 20)
    assert secret(kube, "renewed-ringmaster")["key"], "and its key still"
    two.leader().kill()
    began = time.monotonic()
    wait_until("the coordinator trusts the new authority", lambda: two.has_coordinators(1), 180, 0.5)
    print(f"authority replaced: the coordinator is back after {time.monotonic() - began:.1f} s")
    assert kube.status("renewed")["restarts"] == 0 and kube.status("renewed")["phase"] == "Running", "training has not noticed"


def make_expired(directory, host):
    """An authority and a certificate of its own whose time is over."""
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=directory)

    (directory / "ext").write_text(f"subjectAltName=DNS:{host}\nextendedKeyUsage=serverAuth\n")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=another", "-days", 3650)
    openssl("req", *curve, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=operator")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "tls.crt", "-days", "-1", "-extfile", "ext")
    return {name: (directory / name).read_bytes() for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}


def handshake(port, path, token, secure):
    """An open WebSocket, or what was answered instead."""
    s = socket.create_connection((HOST_IP, port), timeout=10)
    if secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        s = context.wrap_socket(s)
    key = base64.b64encode(os.urandom(16)).decode()
    s.sendall((f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
               f"Sec-WebSocket-Protocol: ringmaster.dev\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer {token}\r\n\r\n").encode())
    try:
        head = s.recv(4096).decode(errors="replace")
    except OSError:
        head = ""
    if " 101 " in head:
        proof = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        assert proof in head
    return s, head.split("\r\n")[0]


def read_close(s):
    """Code and words of the CLOSE frame that comes next."""
    data = b""
    while len(data) < 2 or len(data) < 2 + (data[1] & 127):
        part = s.recv(4096)
        if not part:
            return None, ""
        data += part
    assert data[0] & 15 == 8
    return int.from_bytes(data[2:4], "big"), data[4:2 + data[1]].decode()


def test_who_may_not_speak_is_told_so(kube, pair):
    two = pair()
    kube.apply(ring("guarded", workers=1))
    kube.wait_phase("guarded", "Running", timeout_s=50)
    leader = wait_until("connected", lambda: two.has_coordinators(1), 30)
    at = two.operators.index(leader)
    for path in (f"/control/{kube.namespace}/guarded", f"/control/{kube.namespace}/nobody"):
        s, status = handshake(CHANNEL[at], path, "0" * 64, secure=True)
        with s:
            assert " 101 " in status
            assert read_close(s)[0] == 4403
    s, status = handshake(CHANNEL[1 - at], f"/control/{kube.namespace}/guarded", "0" * 64, secure=True)
    with s:
        assert " 503 " in status, "a replica that does not lead says so"
    s, status = handshake(HTTP[at], f"/control/{kube.namespace}/guarded", "0" * 64, secure=False)
    with s:
        assert " 101 " not in status, "a token is not shown in clear"
    assert leader.metric("coordinators") == 1 and kube.status("guarded")["round"] == 0


# ---- commands --------------------------------------------------------------------------------------------------------------------

# Any rank may hear of the wish first: they agree by the sum of what they have heard.
TRAINER = r"""
import ctypes, json, os, sys, time
rm = ctypes.CDLL(os.environ["RINGMASTER_LIBRARY_DIR"] + "/libringmaster.so")
rm.rm_error_text.restype = ctypes.c_char_p
def check(status):
    assert status == 0, (status, rm.rm_error_text())
check(rm.rm_init(b"test 1.0"))
heard, handle, step = (ctypes.c_float * 1)(), ctypes.c_uint64(), max(0, int(os.environ["RINGMASTER_RESUME_STEP"]))
print("resumed from", step, flush=True)
while not os.path.exists("/tmp/go"):
    step += 1
    time.sleep(0.05 if rm.rm_rank() == 0 else 0.01)
    heard[0] = rm.rm_checkpoint_wanted()
    check(rm.rm_allreduce(b"heard", heard, heard, ctypes.c_uint64(1), 7, 1, ctypes.c_double(1), ctypes.c_double(1), None, None, ctypes.byref(handle)))
    check(rm.rm_wait(handle, ctypes.c_int64(20000)))
    rm.rm_report(json.dumps({"step": step}).encode())
    if heard[0] > 0:
        header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        image, place = len(header).to_bytes(8, "little") + header + bytes(8), ctypes.c_void_p()
        check(rm.rm_checkpoint_begin(ctypes.c_int64(step), ctypes.c_uint64(len(image)), ctypes.byref(place)))
        ctypes.memmove(place, image, len(image))
        check(rm.rm_checkpoint_stage(ctypes.c_int64(step), ctypes.c_uint64(len(image))))
check(rm.rm_shutdown())
"""


def trainer(name, version, directory, workers=2, **container):
    """A job whose ranks take a checkpoint only when they are asked to; on one node, whose directory is the volume."""
    manifest = ring(name, workers=workers, checkpoint={"path": "/checkpoints"}, container={
        "image": TRAINING, "command": ["python3", "-c", TRAINER], "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
        **container})
    pod = manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"] = [{"name": "checkpoints", "hostPath": {"path": str(directory), "type": "Directory"}}]
    pod["terminationGracePeriodSeconds"] = 10
    return manifest


def resumed_from(kube, pod):
    """The step that its process began at: what the status has told of, or one that was committed while its pods went."""
    found = re.findall(r"resumed from (\d+)", kube.run("logs", pod, "-c", "main", check=False).stdout)
    return int(found[-1]) if found else -1


def annotate(kube, name, value):
    kube.run("annotate", "trainingjob", name, f"ringmaster.dev/checkpoint-now={value}", "--overwrite")


def test_a_checkpoint_by_hand_and_one_before_suspend_and_scale(kube, pair, images, tmp_path):
    tmp_path.chmod(0o777)
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    two = pair()
    kube.apply(trainer("asked", images, volume))
    kube.wait_phase("asked", "Running", timeout_s=60)
    wait_until("progress in the status", lambda: kube.status("asked").get("progress", {}).get("step", 0) > 0, 40)
    assert "checkpoint" not in kube.status("asked")

    annotate(kube, "asked", "before-the-demo")
    wait_until("the wish is answered", lambda: kube.status("asked").get("checkpointRequest", {}).get("state") == "Committed", 30)
    answer = kube.status("asked")
    request = answer["checkpointRequest"]
    assert request["value"] == "before-the-demo" and request["reason"] == "Annotation" and request["step"] >= request["fromStep"]
    assert answer["checkpoint"]["step"] == request["step"]
    assert {"CheckpointRequested", "CheckpointCommitted"} <= {e["reason"] for e in kube.events("asked")}
    time.sleep(2)
    assert kube.status("asked")["checkpointRequest"] == request, "one value, one checkpoint"
    ring_shown = wait_until("step times", lambda: kube.status("asked")["ring"].get("slowestStepMilliseconds", 0) > 0 and kube.status("asked")["ring"], 30)
    assert ring_shown["stragglerRank"] == 0 and ring_shown["slowestStepMilliseconds"] > ring_shown["stepMilliseconds"]

    began = time.monotonic()
    kube.patch("asked", {"runPolicy": {"suspend": True}})
    status = kube.wait_phase("asked", "Suspended", timeout_s=30)
    took = time.monotonic() - began
    request = status["checkpointRequest"]
    assert request["reason"] == "Suspend" and request["state"] == "Committed" and request["value"] == "before-the-demo" and took < 9
    print(f"suspended with a checkpoint of step {request['step']} after {took:.1f} s")
    saved = request["step"]
    wait_until("the pods are gone", lambda: not kube.list("pods"), 30)
    kube.patch("asked", {"runPolicy": {"suspend": False}})
    kube.wait_phase("asked", "Running", timeout_s=60)
    assert resumed_from(kube, "asked-worker-0") >= saved

    wait_until("progress again", lambda: kube.status("asked").get("progress", {}).get("step", 0) > saved, 40)
    kube.run("scale", "trainingjob", "asked", "--replicas=1")
    wait_until("scaled with a checkpoint", lambda: kube.status("asked")["checkpointRequest"]["reason"] == "Scale" and
               kube.status("asked")["checkpointRequest"]["state"] == "Committed" and kube.status("asked")["attempt"] == 3, 40)
    saved = kube.status("asked")["checkpointRequest"]["step"]
    wait_until("one rank goes on from what two had saved", lambda: resumed_from(kube, "asked-worker-0") >= saved, 60)
    wait_until("progress of one rank", lambda: kube.status("asked").get("progress", {}).get("step", 0) > saved, 40)
    assert kube.status("asked")["attempt"] == 3 and kube.status("asked")["restarts"] == 0
    assert two.leader() is not None


def test_a_suspend_does_not_wait_for_one_that_cannot_save(kube, pair):
    pair()
    kube.apply(ring("mute", workers=1))
    kube.wait_phase("mute", "Running", timeout_s=50)
    began = time.monotonic()
    kube.patch("mute", {"runPolicy": {"suspend": True}})
    kube.wait_phase("mute", "Suspended", timeout_s=20)
    assert time.monotonic() - began < 5 and "checkpointRequest" not in kube.status("mute"), "nobody there has the client library"


# ---- pods of every kind ------------------------------------------------------------------------------------------------------------


def test_a_trainer_with_a_user_of_its_own_and_no_writable_root(kube, pair, images, tmp_path):
    """The template names the user, so the sidecar has the same: both write to the volume."""
    tmp_path.chmod(0o777)
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    pair()
    manifest = trainer("stranger", images, volume, workers=2)
    pod = manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    pod["securityContext"] = {"runAsNonRoot": True, "fsGroup": 23456}
    pod["containers"][0]["securityContext"] = {"runAsUser": 12345, "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
                                               "capabilities": {"drop": ["ALL"]}}
    pod["volumes"].append({"name": "tmp", "emptyDir": {}})
    pod["containers"][0]["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})
    kube.apply(manifest)
    kube.wait_phase("stranger", "Running", timeout_s=60)
    assert kube.run("exec", "stranger-worker-1", "-c", "main", "--", "cat", "/proc/self/status").split("Uid:")[1].split()[0] == "12345"
    wait_until("its client is attached and reports", lambda: kube.status("stranger").get("progress", {}).get("step", 0) > 0, 40)
    annotate(kube, "stranger", "1")
    wait_until("saved", lambda: kube.status("stranger").get("checkpointRequest", {}).get("state") == "Committed", 30)
    for i in range(2):
        kube.run("exec", f"stranger-worker-{i}", "-c", "main", "--", "touch", "/tmp/go")
    kube.wait_phase("stranger", "Succeeded", timeout_s=40)


@pytest.mark.parametrize("user", [0, image.OTHER_USER])
def test_a_trainer_whose_user_its_image_alone_knows(cluster, kube, pair, user):
    """The sidecar has that of its own image, 65532: the socket is for all users of the pod."""
    name = image.IMAGE if user == 0 else image.IMAGE_OF_OTHER_USER
    for node in cluster.nodes():
        node.add_image(image.build(cluster.state, name, user))
    pair()
    kube.apply(ring("user", workers=2, container={"image": name}))
    kube.wait_phase("user", "Running", timeout_s=50)
    assert kube.shell("user-worker-1", "id -u").strip() == str(user)
    sidecar = next(c for c in kube.pods("user")["worker-1"]["spec"]["initContainers"] if c["name"] == "ringmaster")
    assert "runAsUser" not in sidecar["securityContext"]
    for i in range(2):
        kube.shell(f"user-worker-{i}", "touch /tmp/go")
    kube.wait_phase("user", "Succeeded")


def test_a_sidecar_that_is_a_container_ends_with_the_trainer(kube, pair):
    pair()
    manifest = ring("plain")
    manifest["spec"]["sidecar"] = {"mode": "Container"}
    manifest["spec"]["runPolicy"] = {"cleanPodPolicy": "None"}
    kube.apply(manifest)
    kube.wait_phase("plain", "Running", timeout_s=50)
    pod = kube.pods("plain")["worker-1"]
    assert sorted(c["name"] for c in pod["spec"]["containers"]) == ["main", "ringmaster"]
    for i in range(2):
        kube.run("exec", f"plain-worker-{i}", "-c", "main", "--", "touch", "/tmp/go")
    kube.wait_phase("plain", "Succeeded", timeout_s=40)
    wait_until("the pods are complete by themselves", lambda: {p["status"]["phase"] for p in kube.pods("plain").values()} == {"Succeeded"}, 40)


@pytest.mark.parametrize("command,words", [("/nowhere/train", "exec /nowhere/train: No such file"), ("/tmp", "exec /tmp: Permission denied")])
def test_start_errors_are_told(kube, pair, command, words):
    pair()
    manifest = ring("unable", workers=1, restart="ExitCode")
    manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"] = [command]
    kube.apply(manifest)
    status = kube.wait_phase("unable", "Failed", timeout_s=50)
    told = [e["message"] for e in kube.events("unable") if e["reason"] == "TrainingJobFailed"]
    assert told and "could not start" in told[0] and words in told[0], (told, status["failures"])
