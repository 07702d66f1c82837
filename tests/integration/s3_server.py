"""A real S3 server (versitygw, built once from the Go module proxy and cached beside the test cluster's programs), and a proxy before it
that does to requests what networks and servers do to them.

    python3 tests/integration/s3_server.py      builds the server into the cache
"""

import fcntl
import http.client
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))
import binaries  # noqa: E402
import shell  # noqa: E402

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
ACCESS, SECRET = "AKIDTEST", "secret-of-the-test"
ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'


def ensure() -> pathlib.Path:
    """The program, built when it is not there."""
    directory = binaries.cache_root() / "bin" / f"versitygw-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "versitygw"
    with open(directory / ".lock", "w") as lock:  # another one may be building it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            shell.say(f"building {MODULE} (some minutes, once)")
            environment = {**os.environ, "GOBIN": str(directory), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
            shell.run([binaries._go(), "install", "-ldflags", "-s -w", MODULE], env=environment, quiet=True)
    return program


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """The server with one bucket, its objects as files below `directory`."""

    def __init__(self, directory: pathlib.Path, patience_s: float) -> None:
        self.bucket = directory / "data" / "bucket"
        self.bucket.mkdir(parents=True)
        self.port = free_port()
        command = [str(ensure()), "--access", ACCESS, "--secret", SECRET, "--port", f"127.0.0.1:{self.port}", "posix", str(self.bucket.parent)]
        with open(directory / "versitygw.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + patience_s
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"versitygw does not answer: {(directory / 'versitygw.log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def uploads(self):
        """What was begun in parts and neither completed nor aborted."""
        return [path for path in (self.bucket / ".sgwtmp").rglob("*") if path.is_file()] if (self.bucket / ".sgwtmp").exists() else []

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


class Fault:
    """Happens to the first `times` requests whose "METHOD /path?query" fits, after `after` that are let through."""

    def __init__(self, what, pattern, times=1, after=0, at=0):
        self.what, self.pattern, self.times, self.after, self.at = what, re.compile(pattern), times, after, at
        self.done = 0


class Proxy:
    """One thread a connection. Faults: 500, 503, refused (403); reset before anything, `reset-body` when `at` bytes of the body have come,
    `reset-reply` after `at` bytes of the answer, `lost`: carried out, and the answer thrown away; `error-200`; `expired`; `corrupt`: a
    bit of the body; `hook`: `on_fault` is called, then the request goes on."""

    def __init__(self, port: int) -> None:
        self.backend, self.faults, self.seen = port, [], []
        self.sts_keys = (ACCESS, SECRET)
        self.on_fault = lambda: None
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listener.close()

    def add(self, *args, **more):
        self.faults.append(Fault(*args, **more))
        return self.faults[-1]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _fault(self, line):
        with self.lock:
            self.seen.append(line)
            for fault in self.faults:
                if fault.pattern.search(line):
                    if fault.after > 0:
                        fault.after -= 1
                    elif fault.done < fault.times:
                        fault.done += 1
                        return fault
        return None

    @staticmethod
    def _reset(connection) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def _serve(self, connection) -> None:
        try:
            stream = connection.makefile("rb")
            while self._one(connection, stream):
                pass
            connection.close()
        except OSError:
            pass

    def _one(self, connection, stream) -> bool:
        first = stream.readline().decode().split()
        if len(first) != 3:
            return False
        method, target = first[0], first[1]
        headers = []
        while (line := stream.readline().decode().rstrip("\r\n")):
            name, _, value = line.partition(":")
            headers.append((name.strip(), value.strip()))
        length = int({n.lower(): v for n, v in headers}.get("content-length", "0"))
        fault = self._fault(f"{method} {urllib.parse.unquote(target)}")
        what = fault.what if fault else None
        if what == "reset" or (what == "reset-body" and fault.at >= length):
            self._reset(connection)
            return False
        body = stream.read(min(fault.at, length) if what == "reset-body" else length)
        if what == "reset-body":
            self._reset(connection)
            return False
        if b"AssumeRoleWithWebIdentity" in body and target == "/":
            return self._sts(connection, body)
        if what in ANSWERS:
            status, code = ANSWERS[what]
            return self._answer(connection, status, ERROR.format(code, "by the proxy").encode())
        if what == "corrupt" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if what == "hook":
            self.on_fault()
        return self._forward(connection, method, target, headers, body, fault)

    def _answer(self, connection, status, body) -> bool:
        connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nContent-Type: application/xml\r\n\r\n".encode() + body)
        return True

    def _sts(self, connection, body) -> bool:
        with self.lock:
            self.seen.append("STS " + dict(urllib.parse.parse_qsl(body.decode()))["WebIdentityToken"])
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        return self._answer(connection, 200, (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{self.sts_keys[0]}</AccessKeyId><SecretAccessKey>{self.sts_keys[1]}</SecretAccessKey>"
            f"<SessionToken></SessionToken><Expiration>{expires}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>").encode())

    def _forward(self, connection, method, target, headers, body, fault) -> bool:
        backend = http.client.HTTPConnection("127.0.0.1", self.backend, timeout=90)
        backend.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            backend.putheader(name, value)
        backend.endheaders(body or None)
        reply = backend.getresponse()
        content = reply.read()
        head = f"HTTP/1.1 {reply.status} {reply.reason}\r\n"
        for name, value in reply.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                head += f"{name}: {value}\r\n"
        head += f"Content-Length: {reply.getheader('content-length', '0') if method == 'HEAD' else len(content)}\r\n\r\n"
        backend.close()
        whole = head.encode() + content
        if fault and fault.what in ("lost", "reset-reply"):
            connection.sendall(whole[: fault.at] if fault.what == "reset-reply" else b"")
            self._reset(connection)
            return False
        connection.sendall(whole)
        return True


ANSWERS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "403": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "error-200": (200, "InternalError"),
}


if __name__ == "__main__":
    print(ensure())
