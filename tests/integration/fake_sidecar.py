"""A sidecar in Python for tests of the client library: it speaks wire/local.h and wire/shm.h for all ranks in one thread, and
can be told to misbehave where the real one never would.

    with FakeJob(tmp_path, size=2) as job:
        p = subprocess.Popen([...], env={**env, **job.environment(rank=0)})
        ...
        job.drop(0)              # the sidecar of rank 0 dies

Data is reduced by numpy, so it is also an independent check of what the client sends and where it puts what comes back.
"""

import array
import mmap
import os
import selectors
import socket
import struct
import threading

import numpy as np

MAGIC, VERSION = 0x314D5252, 1
SHM_MAGIC, SHM_VERSION = 0x4D48534D52, 2
SLOT_MAGIC = 0x544F4C534D52
CLIENT_HELLO, REPORT, SLOTS, STAGED, RESTORE, FLUSH, FINISHED = 32, 33, 34, 35, 36, 37, 38
CLIENT_READY, SLOTS_READY, RESTORE_READY, FLUSHED, COMMITTED, REFUSED = 48, 49, 50, 51, 52, 53
ALLREDUCE, ALLGATHER, BROADCAST, BARRIER, FREE = 1, 2, 3, 4, 5
SUM, AVERAGE, MIN, MAX, PRODUCT = 1, 2, 3, 4, 5
DTYPES = {1: "u1", 2: "i1", 3: "i4", 4: "i8", 5: "f2", 7: "f4", 8: "f8", 9: "?", 10: "u2", 11: "i2"}
STATUS_OK, PEER_LOST, MISMATCH, INVALID = 0, 1, 2, 3
SLOT_EMPTY, SLOT_WRITING, SLOT_STAGED, SLOT_PERSISTING, SLOT_COMMITTED = 0, 1, 2, 3, 4

HEADER = struct.Struct("<QIIQIIQQQQQQ")  # struct shm_header up to the indices
REQUEST = struct.Struct("<QHHHHiIQQQQdd128sQIIQ64s")
REPLY = struct.Struct("<QIIQQ256s")
SQ_HEAD, SQ_TAIL, SQ_WAITING, CQ_HEAD, CQ_TAIL, CQ_WAITING, PROGRESS = (128 + 64 * i for i in range(7))
SLOT_STATE, SLOT_STEP, SLOT_FENCE, SLOT_BYTES = 64, 128, 192, 256


class Client:
    """One attached process: its socket, its shared memory."""

    def __init__(self, job, rank, connection):
        self.job, self.rank, self.connection = job, rank, connection
        self.buffer = b""
        self.reports, self.staged, self.finished = [], [], False
        self.memory = None
        self.slots = []
        self.pid = 0

    # ---- shared memory

    def make_memory(self):
        job = self.job
        sq_offset = 4096
        cq_offset = sq_offset + job.entries * REQUEST.size
        arena = (cq_offset + job.entries * REPLY.size + 4095) // 4096 * 4096
        results = arena + job.arena_bytes
        self.results_next, self.results_end = results, results + job.results_bytes
        total = self.results_end
        self.fd = os.memfd_create("fake")
        os.ftruncate(self.fd, total)
        self.memory = mmap.mmap(self.fd, total)
        HEADER.pack_into(
            self.memory, 0, job.shm_magic, SHM_VERSION, 0, job.fence, job.entries, job.entries,
            sq_offset, cq_offset, arena, job.arena_bytes, results, job.results_bytes,
        )  # fmt: skip
        self.sq_offset, self.cq_offset = sq_offset, cq_offset
        self.words = memoryview(self.memory).cast("I")  # one load or store each, where struct goes byte by byte
        self.to_engine, self.to_client = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        return total

    def word(self, offset):
        return self.words[offset // 4]

    def set_word(self, offset, value):
        self.words[offset // 4] = value & 0xFFFFFFFF

    @property
    def progress(self):
        return struct.unpack_from("<Q", self.memory, PROGRESS)[0]

    def requests(self):
        while self.word(SQ_HEAD) != self.word(SQ_TAIL):
            head = self.word(SQ_HEAD)
            fields = REQUEST.unpack_from(self.memory, self.sq_offset + head % self.job.entries * REQUEST.size)
            self.set_word(SQ_HEAD, head + 1)
            names = (
                "id op dtype redop _ root set count row in_offset out_offset prescale postscale name "
                "splits_offset splits _2 shape_hash shape"
            )
            request = dict(zip(names.split(), fields))
            request["name"] = request["name"].split(b"\0")[0].decode()
            yield request

    def reply(self, request_id, status=STATUS_OK, text="", out_offset=0, out_count=0):
        tail = self.word(CQ_TAIL)
        REPLY.pack_into(
            self.memory, self.cq_offset + tail % self.job.entries * REPLY.size,
            request_id, status, self.job.size, out_offset, out_count, text.encode(),
        )  # fmt: skip
        self.set_word(CQ_TAIL, tail + 1)
        os.eventfd_write(self.to_client, 1)

    def read(self, offset, count, dtype):
        return np.frombuffer(self.memory, DTYPES[dtype], count, offset).copy()

    def write(self, offset, values):
        data = values.tobytes()
        self.memory[offset : offset + len(data)] = data

    # ---- socket

    def send(self, kind, payload=b"", fds=()):
        message = struct.pack("<IHH", len(payload), kind, len(fds)) + payload
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.connection.sendmsg([message], ancillary)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has left; the end of its messages says so

    def messages(self):
        """What arrived; raises EOFError when the client has closed."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        self.buffer += data
        while len(self.buffer) >= 8:
            length, kind, _ = struct.unpack_from("<IHH", self.buffer)
            if len(self.buffer) < 8 + length:
                return
            payload, self.buffer = self.buffer[8 : 8 + length], self.buffer[8 + length :]
            yield kind, payload

    def hello(self, payload):
        magic, version, self.pid, _, fence, self.framework = struct.unpack("<IIIIQ32s", payload)
        assert (magic, version) == (MAGIC, VERSION)
        if fence != self.job.fence:
            self.send(REFUSED, struct.pack("<I", CLIENT_HELLO) + f"fence {fence} is not the current one".encode())
            return
        total = self.make_memory()
        ready = struct.pack(
            "<QIIIIQq128s", self.job.fence, self.rank, self.job.size, 0, 1, total, self.job.resume_step, b"fake"
        )  # fmt: skip
        self.send(CLIENT_READY, ready, [self.fd, self.to_engine, self.to_client])

    def make_slots(self, payload):
        (image_bytes,) = struct.unpack("<Q", payload)
        fds = []
        self.slots = []
        for index in range(2):
            fd = os.memfd_create(f"slot-{index}")
            os.ftruncate(fd, 4096 + image_bytes)
            slot = mmap.mmap(fd, 4096 + image_bytes)
            struct.pack_into("<QIIQ", slot, 0, SLOT_MAGIC, 1, index, image_bytes)
            self.slots.append(slot)
            fds.append(fd)
        self.send(SLOTS_READY, struct.pack("<IIQ", 2, 0, image_bytes), fds)
        for fd in fds:
            os.close(fd)

    def slot_state(self, index):
        return struct.unpack_from("<I", self.slots[index], SLOT_STATE)[0]

    def restore(self, payload):
        number = struct.unpack("<II", payload)[0]
        image, world = self.job.restore_images.get(number), self.job.restore_world or self.job.size
        if self.job.restore_images and number >= world:
            self.send(RESTORE_READY, struct.pack("<IIQQQII", 1, world, self.job.resume_step, 0, 0, 0, 0))
            return
        if image is None:
            self.send(RESTORE_READY, struct.pack("<IIQQQII", 0, 0, 0, 0, 0, 0, 0))
            return
        fd = os.memfd_create("image")
        os.write(fd, bytes(4096) + image)  # at 4096, as in a slot
        self.send(RESTORE_READY, struct.pack("<IIQQQII", 1, world, self.job.resume_step, 4096, len(image), 1, 0), [fd])
        os.close(fd)

    def handle(self, kind, payload):
        self.job.log.append((self.rank, kind))
        if kind in self.job.answers:  # a test's own answer
            self.job.answers[kind](self, payload)
        elif kind == CLIENT_HELLO:
            self.hello(payload)
        elif kind == REPORT:
            self.reports.append(payload.decode())
        elif kind == SLOTS:
            self.make_slots(payload)
        elif kind == STAGED:
            slot, _, step, image_bytes = struct.unpack("<IIQQ", payload)
            self.staged.append((step, bytes(self.slots[slot][4096 : 4096 + image_bytes])))
            if self.job.commits:
                struct.pack_into("<I", self.slots[slot], SLOT_STATE, SLOT_COMMITTED)
                self.job.committed = step
                self.send(COMMITTED, struct.pack("<Q", step))
        elif kind == RESTORE:
            self.restore(payload)
        elif kind == FLUSH:
            self.send(FLUSHED, struct.pack("<QII", self.job.committed & 0xFFFFFFFFFFFFFFFF, 1, 0))
        elif kind == FINISHED:
            self.finished = True

    def close(self):
        self.connection.close()
        if self.memory is not None:
            for fd in (self.fd, self.to_engine, self.to_client):
                os.close(fd)
            self.memory = self.words = None


class FakeJob:
    """The sidecars of all ranks. Attributes may be set before clients attach."""

    def __init__(self, directory, size=1, arena_bytes=1 << 20, results_bytes=1 << 20):
        self.size, self.arena_bytes, self.results_bytes = size, arena_bytes, results_bytes
        self.entries = 256
        self.fence = (1 << 32) | 1
        self.shm_magic = SHM_MAGIC
        self.resume_step = -1
        self.restore_images = {}  # rank: safetensors bytes
        self.restore_world = 0  # ranks that saved them; 0: as many as there are
        self.commits = True
        self.committed = -1
        self.answers = {}  # message type: function(client, payload)
        self.on_request = None  # function(client, request) -> True: it was dealt with
        self.hold = False  # requests wait
        self.log, self.names, self.freed = [], [], []
        self.clients = {}  # rank: Client, the newest
        self.failure = None
        self._waiting = {}  # name: {rank: request}
        self._commands, self._lock = [], threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._sockets = []
        self.paths = []
        for rank in range(size):
            listener = socket.socket(socket.AF_UNIX)
            path = str(directory / f"{rank}.sock")
            listener.bind(path)
            listener.listen(8)
            listener.setblocking(False)
            self.paths.append(path)
            self._sockets.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, ("listen", rank))
        self._wake_r, self._wake_w = os.pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ, ("wake", None))
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def environment(self, rank):
        return {"RINGMASTER_SOCKET": self.paths[rank], "RINGMASTER_FENCE": str(self.fence), "RINGMASTER_RANK": str(rank)}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop = True
        os.write(self._wake_w, b"x")
        self._thread.join()
        for client in self.clients.values():
            client.close()
        for listener in self._sockets:
            listener.close()
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        if self.failure is not None:
            raise self.failure

    def run_in_thread(self, function):
        """Calls function() on the sidecar's thread, later."""
        with self._lock:
            self._commands.append(function)
        os.write(self._wake_w, b"x")

    def drop(self, rank):
        """The sidecar of this rank dies."""
        self.run_in_thread(lambda: self._forget(self.clients[rank]))

    def lose(self, text):
        """A rank is lost: everything in flight ends."""
        self.run_in_thread(lambda: self._lose(text))

    # ---- the thread

    def _run(self):
        try:
            while not self._stop:
                for key, _ in self._selector.select(0.05):
                    kind, who = key.data
                    if kind == "listen":
                        self._accept(who)
                    elif kind == "wake":
                        os.read(self._wake_r, 100)
                    elif kind == "socket":
                        self._read(who)
                with self._lock:
                    commands, self._commands = self._commands, []
                for command in commands:
                    command()
                for client in list(self.clients.values()):
                    if client.memory is not None:
                        self._take_requests(client)
        except BaseException as error:  # shown by __exit__
            self.failure = error

    def _accept(self, rank):
        connection, _ = self._sockets[rank].accept()
        connection.setblocking(False)
        client = Client(self, rank, connection)
        self.clients[rank] = client
        self._selector.register(connection, selectors.EVENT_READ, ("socket", client))

    def _forget(self, client):
        if client.connection.fileno() < 0:
            return
        self._selector.unregister(client.connection)
        client.close()
        for waiting in self._waiting.values():
            waiting.pop(client.rank, None)

    def _read(self, client):
        try:
            for kind, payload in client.messages():
                client.handle(kind, payload)
                if client.connection.fileno() < 0:
                    return
            if client.memory is not None and client.to_engine not in self._selector.get_map():
                self._selector.register(client.to_engine, selectors.EVENT_READ, ("ring", client))
        except EOFError:
            if client.memory is not None and client.to_engine in self._selector.get_map():
                self._selector.unregister(client.to_engine)
            self._forget(client)

    def _take_requests(self, client):
        client.set_word(SQ_WAITING, 1)
        try:
            os.eventfd_read(client.to_engine)
        except BlockingIOError:
            pass
        for request in client.requests():
            if request["op"] == FREE:
                self.freed.append((client.rank, request["in_offset"]))
                continue
            self.names.append((client.rank, request["name"]))
            if self.on_request is not None and self.on_request(client, request):
                continue
            self._waiting.setdefault(request["name"], {})[client.rank] = request
        if self.hold:
            return
        for name in [n for n, waiting in self._waiting.items() if len(waiting) == self.size]:
            self._execute(self._waiting.pop(name))

    def _lose(self, text):
        for waiting in self._waiting.values():
            for rank, request in waiting.items():
                self.clients[rank].reply(request["id"], PEER_LOST, text)
        self._waiting.clear()

    def _execute(self, requests):
        first = requests[0]
        ranks = range(self.size)
        same = ("op", "dtype", "redop", "root", "row", "shape_hash") + (() if first["op"] == ALLGATHER else ("count",))
        for rank in ranks:
            if any(requests[rank][field] != first[field] for field in same):
                text = f"rank 0 sent {first['count']} elements, rank {rank} sent {requests[rank]['count']}"
                for other in ranks:
                    self.clients[other].reply(requests[other]["id"], MISMATCH, text)
                return
        inputs = []
        if first["op"] != BARRIER:
            inputs = [self.clients[r].read(requests[r]["in_offset"], requests[r]["count"], first["dtype"]) for r in ranks]
        if first["op"] == ALLGATHER:
            result = np.concatenate(inputs)
        elif first["op"] == BROADCAST:
            result = inputs[first["root"]]
        elif first["op"] == BARRIER:
            result = None
        else:
            result = self._reduce(first, inputs)
        for rank in ranks:
            client, request = self.clients[rank], requests[rank]
            if first["op"] == ALLGATHER:
                at = client.results_next
                client.results_next += (result.nbytes + 63) // 64 * 64
                assert client.results_next <= client.results_end, "the fake's results area is full"
                client.write(at, result)
                client.reply(request["id"], out_offset=at, out_count=result.size)
            else:
                if result is not None:
                    client.write(request["out_offset"], result)
                client.reply(request["id"])

    def _reduce(self, request, inputs):
        floating = request["dtype"] in (5, 7, 8)
        if floating:
            inputs = [(x * request["prescale"]).astype(x.dtype) for x in inputs]
        combine = {SUM: np.add, AVERAGE: np.add, MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}[request["redop"]]
        result = inputs[0]
        for x in inputs[1:]:
            result = combine(result, x)
        scale = request["postscale"] / (self.size if request["redop"] == AVERAGE else 1)
        return (result * scale).astype(result.dtype) if floating else result
