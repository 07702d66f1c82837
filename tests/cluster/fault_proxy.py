"""Proxies that stand between the operator and the API server and do what networks and API servers do on bad days.

HttpProxy reads HTTP/1.1 and asks a Policy about each request: forward it, answer it, cut it off, kill somebody. TcpProxy knows
nothing of what it carries (TLS and HTTP/2 included): it delays, cuts and resets. Both run on one event loop in a thread.
"""

import asyncio
import contextlib
import dataclasses
import json
import random
import socket
import ssl
import struct
import threading
from typing import AsyncIterator, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

HEAD_MAX = 256 << 10
BODY_MAX = 64 << 20
HOP_BY_HOP = {"connection", "keep-alive", "te", "upgrade", "http2-settings", "transfer-encoding", "content-length", "expect", "proxy-connection"}
MUTATING = {"POST", "PUT", "PATCH", "DELETE"}


class Cut(Exception):
    """The connection is to be cut; after so many bytes of the answer where there is one."""

    def __init__(self, reset: bool = True) -> None:
        super().__init__("cut")
        self.reset = reset


@dataclasses.dataclass
class Request:
    method: str
    target: str
    headers: List[Tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> Dict[str, str]:
        return {k: v[0] for k, v in parse_qs(urlsplit(self.target).query).items()}

    @property
    def is_watch(self) -> bool:
        return self.method == "GET" and self.query.get("watch") in ("true", "1")

    @property
    def is_write(self) -> bool:
        """Something is different afterwards; not so after a dry run."""
        return self.method in MUTATING and "dryRun" not in self.query

    @property
    def is_lease(self) -> bool:
        return "/leases" in self.path

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclasses.dataclass
class Answer:
    status: int
    headers: List[Tuple[str, str]]
    body: bytes
    slow_s: float = 0.0            # the body takes so long
    cut_after: Optional[int] = None  # bytes of the body, then the connection breaks


def failure(status: int, reason: str, retry_after_s: Optional[int] = None) -> Answer:
    """What an API server says when it says no."""
    details = {"retryAfterSeconds": retry_after_s} if retry_after_s else {}
    text = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason, "message": f"injected {status}", "details": details}
    headers = [("Content-Type", "application/json")] + ([("Retry-After", str(retry_after_s))] if retry_after_s else [])
    return Answer(status, headers, json.dumps(text).encode())


class Policy:
    """Forwards everything. What it raises of kind Cut ends the connection."""

    async def before(self, request: Request) -> Optional[Answer]:
        """An answer, or None to ask the API server."""
        return None

    async def after(self, request: Request, answer: Answer) -> Answer:
        """What the client gets in place of the API server's answer; not called for watches."""
        return answer

    async def lines(self, request: Request, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What the client gets of a watch: pieces of any size."""
        async for line in source:
            yield line


# ---- HTTP ------------------------------------------------------------------------------------------------------------------


async def _read_head(reader: asyncio.StreamReader) -> Optional[Tuple[str, List[Tuple[str, str]]]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *rest = head.decode("latin-1").split("\r\n")
    return first, [(k, v.strip()) for k, _, v in (line.partition(":") for line in rest if line)]


def _header(headers: List[Tuple[str, str]], name: str) -> str:
    return next((v for k, v in headers if k.lower() == name), "")


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield piece[:-2]


async def _read_body(reader: asyncio.StreamReader, headers: List[Tuple[str, str]]) -> bytes:
    if "chunked" in _header(headers, "transfer-encoding").lower():
        return b"".join([piece async for piece in _chunks(reader)])
    return await reader.readexactly(int(_header(headers, "content-length") or 0))


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in _chunks(reader):
        rest += piece
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST in place of FIN."""
    with contextlib.suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _close(writer: Optional[asyncio.StreamWriter]) -> None:
    if writer is not None:
        with contextlib.suppress(Exception):
            writer.close()


class Proxies:
    """The event loop that all proxies of a test share."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.held: set = set()
        self.loop.set_task_factory(self._hold)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="proxies")
        self.thread.start()

    def _hold(self, loop, coroutine, **options) -> asyncio.Task:
        """The loop itself refers to no task: one that waits for what only it knows would be collected as garbage, its connection with it."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        self.held.add(task)
        task.add_done_callback(self.held.discard)
        return task

    def call(self, coroutine, timeout_s: float = 10):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def close(self) -> None:
        async def cancel() -> None:
            while tasks := [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=1)
            await self.loop.shutdown_asyncgens()

        self.call(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


class HttpProxy:
    """127.0.0.1:port → the API server as the kubeconfig's user. `tls`: certificate and key to show to the client, or none."""

    def __init__(self, proxies: Proxies, upstream_port: int, user: ssl.SSLContext, tls: Optional[Tuple[str, str]] = None) -> None:
        self.proxies, self.upstream_port, self.user, self.policy = proxies, upstream_port, user, Policy()
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
        self.writers: set = set()
        self.server = proxies.call(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_MAX, ssl=context))
        self.port = self.server.sockets[0].getsockname()[1]

    def drop_connections(self) -> None:
        """Resets every connection there is."""
        self.proxies.loop.call_soon_threadsafe(lambda: [_reset(w) for w in list(self.writers)])

    def close(self) -> None:
        self.proxies.loop.call_soon_threadsafe(self.server.close)
        self.drop_connections()

    async def _dial(self) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.upstream_port, ssl=self.user, limit=BODY_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = None
        self.writers.add(writer)
        try:
            while (request := await self._read_request(reader, writer)) is not None:
                answer = await self.policy.before(request)
                if answer is None:
                    upstream = upstream or await self._dial()
                    answer = await self._forward(request, upstream, writer)
                if answer is None:
                    return  # a watch has ended
                await self._send(writer, answer)
        except Cut as cut:
            if cut.reset:
                _reset(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError, OSError, ValueError):
            _reset(writer)
        finally:
            self.writers.discard(writer)
            _close(writer)
            _close(upstream[1] if upstream else None)

    async def _read_request(self, reader, writer) -> Optional[Request]:
        head = await _read_head(reader)
        if head is None:
            return None
        method, target, _ = head[0].split(" ", 2)
        if _header(head[1], "expect").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, target, head[1], await _read_body(reader, head[1]))

    async def _forward(self, request: Request, upstream, writer) -> Optional[Answer]:
        up_reader, up_writer = upstream
        headers = [(k, v) for k, v in request.headers if k.lower() not in HOP_BY_HOP | {"accept-encoding"}]
        text = f"{request.method} {request.target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers)
        up_writer.write(f"{text}Content-Length: {len(request.body)}\r\n\r\n".encode("latin-1") + request.body)
        await up_writer.drain()
        head = await _read_head(up_reader)
        if head is None:
            raise ConnectionError("the API server closed the connection")
        status = int(head[0].split(" ")[1])
        headers = [(k, v) for k, v in head[1] if k.lower() not in HOP_BY_HOP]
        if request.is_watch and status == 200:
            await self._stream(request, headers, up_reader, writer)
            return None
        body = b"" if status in (204, 304) else await _read_body(up_reader, head[1])
        return await self.policy.after(request, Answer(status, headers, body))

    async def _stream(self, request: Request, headers, up_reader, writer) -> None:
        text = "HTTP/1.1 200 OK\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers)
        writer.write(f"{text}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1"))
        async for piece in self.policy.lines(request, _lines(up_reader)):
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _send(self, writer, answer: Answer) -> None:
        text = f"HTTP/1.1 {answer.status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in answer.headers)
        writer.write(f"{text}Content-Length: {len(answer.body)}\r\n\r\n".encode("latin-1"))
        body = answer.body if answer.cut_after is None else answer.body[:answer.cut_after]
        step = max(1, len(body) // 8) if answer.slow_s else max(1, len(body))
        for at in range(0, len(body), step):
            writer.write(body[at:at + step])
            await writer.drain()
            if answer.slow_s:
                await asyncio.sleep(answer.slow_s / 8)
        if answer.cut_after is not None:
            raise Cut(reset=False)


# ---- killing at a write ------------------------------------------------------------------------------------------------------


class CrashAt(Policy):
    """Kills the client at its k-th write: before it is forwarded, or after the answer and before that is given. k = 0: never;
    `every`: after each write that was not refused. What a client that is dead had sent before is carried out, as in life."""

    def __init__(self, k: int = 0, before: bool = False, every: bool = False, kill: Callable[[], None] = lambda: None) -> None:
        self.k, self.is_before, self.every, self.kill = k, before, every, kill
        self.writes: List[str] = []
        self.fired = 0

    def _counts(self, request: Request) -> int:
        if not request.is_write or request.is_lease:
            return 0
        self.writes.append(str(request))
        return len(self.writes)

    async def before(self, request: Request) -> Optional[Answer]:
        number = self._counts(request)
        request.number = number
        if number and number == self.k and self.is_before:
            self._fire()
        return None

    async def after(self, request: Request, answer: Answer) -> Answer:
        if request.number and (request.number == self.k or (self.every and answer.status < 300)):
            self._fire()
        return answer

    def _fire(self) -> None:
        self.fired += 1
        self.kill()
        raise Cut


class LateWatch(Policy):
    """What a watch of jobs tells comes late, and every third answer to a write of a status is lost after it was carried out."""

    def __init__(self, late_s: float) -> None:
        self.late_s, self.writes = late_s, 0

    async def after(self, request: Request, answer: Answer) -> Answer:
        if request.is_write and request.path.endswith("/status"):
            self.writes += 1
            if self.writes % 3 == 0:
                raise Cut
        return answer

    async def lines(self, request: Request, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        frames: asyncio.Queue = asyncio.Queue()

        async def pump() -> None:
            async for line in source:
                frames.put_nowait((asyncio.get_running_loop().time() + self.late_s, line))

        task = asyncio.ensure_future(pump())
        try:
            while True:
                due, line = await frames.get()
                if request.path.endswith("/trainingjobs"):
                    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                yield line
        finally:
            task.cancel()


# ---- everything that goes wrong ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Rates:
    """Probabilities, each of a request; those of watches of a frame."""

    busy: float = 0.03          # 429 with Retry-After
    broken: float = 0.03        # 500, 502, 503, 504
    refused: float = 0.02       # the connection is reset before the request is carried out
    unanswered: float = 0.03    # ... and after it
    truncated: float = 0.02     # the answer breaks off
    slow: float = 0.05          # the answer takes its time
    expired: float = 0.08       # 410 for a watch or a page
    no_streaming: float = 0.5   # 422 for a list as a stream, so that pages are read, too
    frame_twice: float = 0.05
    frame_swap: float = 0.05    # with the one behind it, where that is of another object
    frame_late: float = 0.05
    frame_torn: float = 0.01    # half a frame, then the end
    frame_lost: float = 0.02    # the stream ends and what was on its way is gone
    frame_gone: float = 0.01    # an ERROR event, 410
    frame_split: float = 0.1    # in two chunks


class Chaos(Policy):
    """All of Rates while it is `on`. Counts what it did. Leases are left alone: whoever leads shall lead through all of it."""

    def __init__(self, seed: int, rates: Optional[Rates] = None) -> None:
        self.random, self.rates, self.on, self.done = random.Random(seed), rates or Rates(), True, {}

    def _happens(self, name: str) -> bool:
        if not self.on or self.random.random() >= getattr(self.rates, name):
            return False
        self.done[name] = self.done.get(name, 0) + 1
        return True

    async def before(self, request: Request) -> Optional[Answer]:
        if request.is_lease:
            return None
        if self._happens("busy"):
            return failure(429, "TooManyRequests", 1)
        if self._happens("broken"):
            code = self.random.choice([500, 502, 503, 504])
            return self.random.choice([failure(code, "InternalError"), Answer(code, [("Content-Type", "text/html")], b"<html>bad gateway</html>")])
        if self._happens("refused"):
            raise Cut
        listed = request.is_watch or (request.method == "GET" and request.path.split("/")[-1] in ("pods", "services", "nodes", "trainingjobs"))
        if request.is_watch and "sendInitialEvents" in request.query and self._happens("no_streaming"):
            return failure(422, "Invalid")
        if listed and ("resourceVersion" in request.query or "continue" in request.query) and self._happens("expired"):
            return failure(410, "Expired")
        return None

    async def after(self, request: Request, answer: Answer) -> Answer:
        if request.is_lease:
            return answer
        if self._happens("unanswered"):
            raise Cut
        if self._happens("truncated"):
            answer.cut_after = self.random.randrange(0, len(answer.body) + 1)
        if self._happens("slow"):
            answer.slow_s = self.random.uniform(0.1, 2.0)
        return answer

    async def lines(self, request: Request, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        frames: asyncio.Queue = asyncio.Queue()

        async def pump() -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
                async for line in source:
                    frames.put_nowait(line)
            frames.put_nowait(None)

        task = asyncio.ensure_future(pump())
        try:
            while (frame := await frames.get()) is not None:
                if self._happens("frame_swap") and (behind := await self._next_within(frames, 0.5)) is not None:
                    # Nothing may end the stream between these two: what was overtaken would be lost for good.
                    yield behind + frame if _object_of(behind) != _object_of(frame) else frame + behind
                    continue
                async for piece in self._spoilt(frame):
                    yield piece
                if self._happens("frame_lost"):
                    return
                if self._happens("frame_gone"):
                    yield json.dumps({"type": "ERROR", "object": json.loads(failure(410, "Expired").body)}).encode() + b"\n"
                    return
        finally:
            task.cancel()

    @staticmethod
    async def _next_within(frames: asyncio.Queue, timeout_s: float) -> Optional[bytes]:
        try:
            frame = await asyncio.wait_for(frames.get(), timeout_s)
        except asyncio.TimeoutError:
            return None
        if frame is None:
            frames.put_nowait(None)
        return frame

    async def _spoilt(self, frame: bytes) -> AsyncIterator[bytes]:
        if self._happens("frame_torn"):
            yield frame[:self.random.randrange(0, len(frame))]
            raise Cut(reset=self.random.random() < 0.5)
        if self._happens("frame_late"):
            await asyncio.sleep(self.random.uniform(0.1, 1.5))
        at = self.random.randrange(0, len(frame)) if self._happens("frame_split") else 0
        if at > 0:
            yield frame[:at]
            await asyncio.sleep(0.02)
        yield frame[at:]
        if self._happens("frame_twice"):
            yield frame


def _object_of(line: bytes) -> str:
    metadata = json.loads(line).get("object", {}).get("metadata", {})
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


# ---- TCP -----------------------------------------------------------------------------------------------------------------------


class TcpProxy:
    """Carries bytes and, while it is `on`, cuts: in the handshake, in the middle, by FIN and by RST; and delays."""

    def __init__(self, proxies: Proxies, upstream_port: int, seed: int, mean_life_s: float = 1.5) -> None:
        self.proxies, self.upstream_port, self.random, self.mean_life_s, self.on = proxies, upstream_port, random.Random(seed), mean_life_s, True
        self.cuts = 0
        self.server = proxies.call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self.proxies.loop.call_soon_threadsafe(self.server.close)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_writer = None
        try:
            if self.on and self.random.random() < 0.15:  # after the client's hello, or before
                await asyncio.wait_for(reader.read(self.random.choice([1, 100, 4096])), 5)
                self.cuts += 1
                return _reset(writer)
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            pumps = [asyncio.ensure_future(self._pump(reader, up_writer)), asyncio.ensure_future(self._pump(up_reader, writer))]
            while True:
                done, _ = await asyncio.wait(pumps, timeout=self.random.expovariate(1 / self.mean_life_s), return_when=asyncio.FIRST_COMPLETED)
                if done or self.on:
                    break
            self.cuts += not done
            for pump in pumps:
                pump.cancel()
            if not done and self.random.random() < 0.5:
                _reset(writer)
        except (ConnectionError, OSError, asyncio.TimeoutError):
            pass
        finally:
            _close(writer)
            _close(up_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(16384):
                if self.on and self.random.random() < 0.05:
                    await asyncio.sleep(self.random.uniform(0.01, 0.3))
                    at = self.random.randrange(0, len(data))
                    writer.write(data[:at])
                    await writer.drain()
                    await asyncio.sleep(0.01)
                    data = data[at:]
                writer.write(data)
                await writer.drain()
