"""The coordinator's channel to an operator: a real sidecar against a small operator in Python, with TLS, that does what operators do:
it does not lead, it closes, it has another certificate, it asks for a checkpoint, it dies."""

import base64
import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest

from conftest import PATIENCE_S
from group import Group, free_port

HOST = "127.0.0.1"
SLEEP = ["sh", "-c", "exec sleep 1000"]
LATER = 1013


class Authority:
    """An authority and what it issues, made with the openssl program."""

    def __init__(self, directory, name):
        self.directory, self.name = directory, name
        self.certificate, self.key = directory / f"{name}.crt", directory / f"{name}.key"
        self._run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key, "-out", self.certificate,
                  "-subj", f"/CN={name}", "-days", "2")

    def _run(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    def issue(self, name, address=HOST, days=1):
        """certificate and key of a server; days < 0: its time is over."""
        request, key, certificate, extra = (self.directory / f"{name}.{end}" for end in ("csr", "key", "crt", "ext"))
        extra.write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n")
        self._run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=operator")
        self._run("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-out", certificate, "-days", days,
                  "-extfile", extra)
        return certificate, key


class FakeOperator:
    """Takes one connection after the other. `answer` is what the next handshakes are answered with; every message is kept."""

    def __init__(self, port, pair=None):
        self.port, self.pair = port, pair
        self.tokens, self.messages, self.failed, self.refused = [], [], [], 0
        self.refuse = 0                      # so many handshakes are answered with 503 first
        self.connection = None
        self.stop = False
        self.server = socket.create_server((HOST, port))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while not self.stop:
            if not select.select([self.server], [], [], 0.05)[0]:
                continue
            raw, _ = self.server.accept()
            raw.settimeout(60)
            try:
                if self.pair:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(*self.pair)
                    raw = context.wrap_socket(raw, server_side=True)
                with raw:
                    self._talk(raw)
            except (OSError, ssl.SSLError, EOFError) as error:
                self.failed.append(str(error))
                raw.close()
            self.connection = None

    @staticmethod
    def _read(s, count):
        data = b""
        while len(data) < count:
            part = s.recv(count - len(data))
            if not part:
                raise EOFError("closed")
            data += part
        return data

    def _talk(self, s):
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._read(s, 1)
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        self.tokens.append(fields["Authorization"])
        if self.refuse > 0:
            self.refuse -= 1
            self.refused += 1
            s.sendall(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
            return
        proof = base64.b64encode(hashlib.sha1((fields["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        s.sendall(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {proof}\r\n\r\n".encode())
        self.connection = s
        s.settimeout(0.05)
        while not self.stop:
            try:
                first = s.recv(1)
            except TimeoutError:
                continue
            if not first:
                return
            s.settimeout(5)
            opcode, size = first[0] & 15, self._read(s, 1)[0] & 127
            if size > 125:
                size = int.from_bytes(self._read(s, 2 if size == 126 else 8), "big")
            mask, data = self._read(s, 4), self._read(s, size)
            if opcode == 1:
                self.messages.append(json.loads(bytes(b ^ mask[i % 4] for i, b in enumerate(data))))
            s.settimeout(0.05)

    def frame(self, opcode, payload):
        self.connection.sendall(bytes([0x80 | opcode, len(payload)]) + payload)

    def close_with(self, code, words=b""):
        self.frame(8, struct.pack(">H", code) + words)

    @property
    def last(self):
        return self.messages[-1] if self.messages else None

    def end(self):
        self.stop = True
        self.thread.join()
        self.server.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "right")


@pytest.fixture
def world(keep, sidecar_path, launch_path, env, mark, tmp_path):
    """operator(...) starts one at the same port each time; group(...) is a job of one member that reports to it."""
    port, operators = free_port(HOST), []

    class World:
        ca = tmp_path / "ca.crt"

        @staticmethod
        def operator(pair=None):
            operators.append(FakeOperator(port, pair))
            return operators[-1]

        def group(self, commands=None, scheme="wss", **more):
            made = Group(sidecar_path, launch_path, commands or {"chief-0": SLEEP}, env={**env, "RM_TEST_MARK": mark})
            made.extra = {m: {"RINGMASTER_CONTROL": f"{scheme}://{HOST}:{port}/control/ns/test", "RINGMASTER_CONTROL_CA": str(self.ca), **more}
                          for m in made.members}
            return keep(made)

    yield World()
    for operator in operators:
        with contextlib.suppress(OSError):
            operator.end()


def test_reports_come_through_tls_and_a_renewed_certificate_is_taken(world, authority, wait_for):
    world.ca.write_bytes(authority.certificate.read_bytes())
    operator = world.operator(authority.issue("first"))
    group = world.group().start()
    wait_for(lambda: operator.last and operator.last["formed"], what="a report of the running job")
    assert operator.tokens[0].startswith("Bearer ") and len(operator.tokens[0]) == 7 + 64
    assert operator.last["job_uid"] == group.uid

    operator.end()
    again = world.operator(authority.issue("second"))
    wait_for(lambda: again.last and again.last["formed"], what="the whole state, sent anew to the operator that came back")
    assert group.launchers["chief-0"].poll() is None


def test_a_server_that_cannot_be_trusted_gets_no_token(world, authority, wait_for, tmp_path):
    other = Authority(tmp_path, "other")
    world.ca.write_bytes(authority.certificate.read_bytes())
    rows = [(other.issue("stranger"), "not taken"), (authority.issue("expired", days=-1), "expired"),
            (authority.issue("elsewhere", address="10.9.8.7"), "IP address mismatch")]
    for pair, words in rows:
        operator = world.operator(pair)
        group = world.group().start()
        wait_for(lambda: words in group.log("chief-0"), what=f"the log says {words}")  # noqa: B023
        wait_for(lambda: operator.failed, what="the handshake fails")  # noqa: B023
        assert not operator.tokens and not operator.messages
        assert "nobody reads the reports; training goes on" in group.log("chief-0")
        wait_for(lambda: group.launchers["chief-0"].poll() is None and "state=Running" in group.log("chief-0"), what="the process runs")  # noqa: B023
        group.close()
        operator.end()


def test_an_authority_that_was_replaced_is_read_at_the_next_try(world, authority, wait_for, tmp_path):
    other = Authority(tmp_path, "former")
    world.ca.write_bytes(other.certificate.read_bytes())
    operator = world.operator(authority.issue("present"))
    group = world.group().start()
    wait_for(lambda: operator.failed, what="a refusal")
    world.ca.write_bytes(authority.certificate.read_bytes())
    wait_for(lambda: operator.last, what="a report")
    assert "reports are read again" in group.log("chief-0")


def test_wss_without_an_authority_is_an_error_in_words(world):
    group = world.group(RINGMASTER_CONTROL_CA="")
    process = group.start_sidecar("chief-0")
    assert process.wait(PATIENCE_S) != 0
    assert "RINGMASTER_CONTROL_CA is not set" in group.log("chief-0")


def test_the_operator_that_leads_is_found_soon(world, wait_for):
    operator = world.operator()
    operator.refuse = 6
    group = world.group(scheme="ws").start()
    wait_for(lambda: operator.last, what="a report")
    assert operator.refused == 6
    assert "nobody reads" not in group.log("chief-0"), "a replica that does not lead is no news"


def test_a_close_is_told_and_try_later_is_soon(world, wait_for):
    operator = world.operator()
    group = world.group(scheme="ws").start()
    wait_for(lambda: operator.last, what="a report")
    operator.close_with(LATER, b"the key is being read")
    wait_for(lambda: len(operator.tokens) == 2 and operator.connection, what="it is back")
    assert "nobody reads" not in group.log("chief-0")
    operator.close_with(4403, b"there is no such job")
    wait_for(lambda: "there is no such job" in group.log("chief-0"), what="why the channel was closed")


SAVES_WHEN_ASKED = """
import ctypes, json, os, time
rm = ctypes.CDLL(os.environ["CLIENT_LIBRARY"])
rm.rm_error_text.restype = ctypes.c_char_p
def check(status):
    assert status == 0, (status, rm.rm_error_text())
check(rm.rm_init(b"test 1.0"))
step = 0
while True:
    step += 1
    rm.rm_report(json.dumps({"step": step}).encode())
    if rm.rm_checkpoint_wanted():
        header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        image = len(header).to_bytes(8, "little") + header + bytes(8)
        place, committed = ctypes.c_void_p(), ctypes.c_int64()
        check(rm.rm_checkpoint_begin(ctypes.c_int64(step), ctypes.c_uint64(len(image)), ctypes.byref(place)))
        ctypes.memmove(place, image, len(image))
        check(rm.rm_checkpoint_stage(ctypes.c_int64(step), ctypes.c_uint64(len(image))))
    time.sleep(0.02)
"""


def test_a_checkpoint_is_made_when_the_operator_asks_for_one(world, authority, wait_for, client_library, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SAVES_WHEN_ASKED)
    world.ca.write_bytes(authority.certificate.read_bytes())
    operator = world.operator(authority.issue("asks"))
    group = world.group({"chief-0": [sys.executable, script]})
    group.env["CLIENT_LIBRARY"] = str(client_library)
    group.start()
    wait_for(lambda: operator.last and operator.last["members"][0]["step"] > 3, what="progress")
    assert operator.last["checkpoint_step"] == -1
    asked_at = operator.last["members"][0]["step"]
    operator.frame(1, json.dumps({"type": "command", "command": "checkpoint", "grace_ms": 0}).encode())
    wait_for(lambda: operator.last["checkpoint_step"] >= asked_at, what="the commit is reported")


# ---- a sidecar that is a container as any other ------------------------------------------------------------------------------


def test_a_sidecar_leaves_with_its_launcher_and_with_0(world, wait_for):
    operator = world.operator()
    group = world.group({"chief-0": ["sh", "-c", "exit 0"], "worker-0": ["sh", "-c", "exit 0"]}, scheme="ws", RINGMASTER_LEAVE_WITH_LAUNCHER="true")
    group.start()
    assert [group.launchers[m].wait(PATIENCE_S) for m in group.members] == [0, 0]
    assert [group.sidecars[m].wait(PATIENCE_S) for m in group.members] == [0, 0]
    assert "the main container has ended" in group.log("chief-0") and operator.last["members"][0]["state"] == "Done"


def test_it_stays_while_the_launcher_lives(world, wait_for):
    group = world.group(scheme="ws", RINGMASTER_LEAVE_WITH_LAUNCHER="true")
    operator = world.operator()
    group.start()
    wait_for(lambda: operator.last and operator.last["formed"], what="it runs")
    time.sleep(1.5)
    assert group.sidecars["chief-0"].poll() is None
    group.launchers["chief-0"].send_signal(signal.SIGKILL)
    assert group.sidecars["chief-0"].wait(PATIENCE_S) == 0


# ---- who may use the pod's socket ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("access,may", [("pod", True), ("user", False)])
def test_another_user_may_use_the_socket_of_a_pod_alone(world, wait_for, access, may):
    operator = world.operator()
    group = world.group(scheme="ws", RINGMASTER_SOCKET_ACCESS=access)
    os.chmod(group.dir, 0o755)
    group.start_sidecar("chief-0")
    path = group.dir / "chief-0" / "sidecar.sock"
    wait_for(path.exists, what="the socket")
    wait_for(lambda: (path.stat().st_mode & 0o777) == (0o666 if may else 0o600), what="its mode")
    launcher = subprocess.Popen([group.launch_path, "--", "id", "-u"], env=group.member_env("chief-0"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                user=12345, group=12345, extra_groups=[], cwd="/")
    group.launchers["chief-0"] = launcher
    if may:
        assert launcher.wait(PATIENCE_S) == 0 and launcher.stdout.read() == b"12345\n"
        wait_for(lambda: any(message["members"][0]["state"] == "Done" for message in operator.messages), what="the report of its end")
    else:
        time.sleep(1)
        assert launcher.poll() is None and not (operator.last or {}).get("formed")
