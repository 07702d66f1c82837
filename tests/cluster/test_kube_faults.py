"""lib/kube against a server that does everything wrong: a few lines of HTTP on loopback, without Kubernetes.

Each test is a script of what the server answers to one request after the other; `follow` (kube_client_check.c) must come through
it with the right objects.
"""

import json
import os
import pathlib
import re
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("RINGMASTER_BUILD", ROOT / "build"))
PROGRAM = BUILD / "tests" / "cluster" / "kube_client_check"


def config_map(name, version, value="x"):
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": version}, "data": {"value": value}}


def event(kind, thing):
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def listing(version, *items, more=""):
    return json.dumps({"kind": "ConfigMapList", "metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}).encode()


def status(code, reason="", **details):
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": f"scripted {code}", "details": details}).encode()


class Script:
    """Answers in order; the last one stays. An answer is a function of the request's handler."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.seen = []  # (seconds, query) of each request
        self.lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
                with script.lock:
                    script.seen.append((time.monotonic(), query))
                    answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


def reply(body, code=200, headers=()):
    def answer(handler):
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def stream(*pieces, end=True, pause_s=0.0):
    """Chunks, then the end of the stream; or a connection that breaks; `None` waits for ever."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            if piece is None:
                time.sleep(60)
                return
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.flush()
            time.sleep(pause_s)
        if end:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.wfile.flush()
            handler.connection.shutdown(2)

    return answer


def broken(handler):
    handler.connection.shutdown(2)


REFUSES_STREAMS = reply(status(422, "Invalid"), 422)


@pytest.fixture
def run(tmp_path):
    made = []

    def start(script, wanted, timeout_s=20):
        config = tmp_path / "config"
        port = script.http.server_address[1]
        config.write_text(f"current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n"
                          f"clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n")
        log = open(tmp_path / "log", "w+")  # noqa: SIM115
        process = subprocess.Popen([PROGRAM, "follow", "n"], env={**os.environ, "KUBECONFIG": str(config), "no_proxy": "127.0.0.1"}, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        made.append((process, script, log))
        deadline = time.monotonic() + timeout_s
        while True:
            process.stdin.write("dump\nstats\n")
            process.stdin.flush()
            lines = []
            while lines.count(".") < 2:
                line = process.stdout.readline()
                assert line, pathlib.Path(log.name).read_text()
                lines.append(line.strip())
            dump = dict(line.split("=", 1) for line in lines[:lines.index(".")] if "=" in line)
            if dump == wanted:
                return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", lines[-2])}
            assert time.monotonic() < deadline, f"{dump}, not {wanted}; {pathlib.Path(log.name).read_text()}"
            time.sleep(0.05)

    yield start
    for process, script, log in made:
        process.stdin.close()
        code = process.wait(10)
        script.http.shutdown()
        script.http.server_close()
        text = pathlib.Path(log.name).read_text()
        assert code == 0 and "Sanitizer" not in text and "runtime error" not in text, text


def test_a_server_without_streaming_lists_is_asked_for_pages(run):
    script = Script(REFUSES_STREAMS, reply(listing("5", config_map("a", "1"), more="t&=?")), reply(listing("5", config_map("b", "2"))),
                    stream(event("ADDED", config_map("c", "6")), None))
    assert run(script, {"a": "x", "b": "x", "c": "x"})["lists"] == 2
    queries = [q for _, q in script.seen]
    assert queries[0]["sendInitialEvents"] == "true" and queries[2]["continue"] == "t&=?" and queries[3]["resourceVersion"] == "5"


def test_frames_cut_anywhere_are_the_same_frames(run):
    whole = event("ADDED", config_map("a", "6")) + event("ADDED", config_map("b", "7", "ü€")) + event("DELETED", config_map("a", "8"))
    run(Script(REFUSES_STREAMS, reply(listing("5")), stream(*[whole[i:i + 1] for i in range(len(whole))], None)), {"b": "ü€"})


def test_a_stream_that_breaks_in_a_frame_goes_on_from_the_last_version(run):
    half = event("ADDED", config_map("b", "7"))[:40]
    script = Script(REFUSES_STREAMS, reply(listing("5")), stream(event("ADDED", config_map("a", "6")) + half, end=False),
                    stream(event("ADDED", config_map("b", "7")), None))
    run(script, {"a": "x", "b": "x"})
    assert script.seen[-1][1]["resourceVersion"] == "6"


@pytest.mark.parametrize("gone", [reply(status(410, "Expired"), 410), stream(event("ERROR", json.loads(status(410, "Expired"))))],
                         ids=["as a status", "as an event"])
def test_410_lists_anew_and_reports_what_vanished(run, gone):
    script = Script(REFUSES_STREAMS, reply(listing("5", config_map("a", "1"), config_map("b", "2"))), gone, reply(listing("9", config_map("b", "2"))),
                    stream(None))
    stats = run(script, {"b": "x"})
    assert stats["starts"] == 3 and stats["changes"] == 3


def test_retry_after_is_waited_for(run):
    busy = reply(status(429, "TooManyRequests"), 429, [("Retry-After", "2")])
    script = Script(busy, REFUSES_STREAMS, reply(listing("5", config_map("a", "1"))), stream(None))
    run(script, {"a": "x"})
    assert script.seen[1][0] - script.seen[0][0] >= 1.9


@pytest.mark.parametrize("rubbish", [b"not json\n", b'{"type":"ADDED"}\n', b'{"type":"WHAT","object":{}}\n', b'[]\n', b"\x00\xff\n",
                                     b'{"type":"ADDED","object":{"metadata":{"name":"' + b"a" * 300 + b'","resourceVersion":"7"}}}\n',
                                     b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":7}}}\n'])
def test_rubbish_in_a_watch_starts_over(run, rubbish):
    script = Script(REFUSES_STREAMS, reply(listing("5", config_map("a", "1"))), stream(rubbish, None), reply(listing("9", config_map("b", "8"))), stream(None))
    assert run(script, {"b": "x"})["starts"] == 3


@pytest.mark.parametrize("answer", [reply(b"<html>", 502), reply(status(500), 500), reply(b""), reply(b"{"), reply(b"[1]"), broken,
                                    reply(listing("")), stream(b'{"items":', end=False)])
def test_a_list_that_fails_is_asked_for_again(run, answer):
    script = Script(REFUSES_STREAMS, answer, answer, reply(listing("5", config_map("a", "1"))), stream(None))
    run(script, {"a": "x"})


def test_a_page_that_is_too_large_is_asked_for_in_halves(run):
    huge = listing("5", config_map("a", "1", "y" * (17 << 20)))
    script = Script(REFUSES_STREAMS, reply(huge), reply(listing("5", config_map("a", "1"))), stream(None))
    run(script, {"a": "x"})
    assert [q.get("limit") for _, q in script.seen[1:3]] == ["500", "250"]


def test_a_line_without_end_is_bounded(run):
    chunk = b"x" * (1 << 20)
    script = Script(REFUSES_STREAMS, reply(listing("5")), stream(*[chunk] * 20, None), reply(listing("9", config_map("b", "8"))), stream(None))
    run(script, {"b": "x"})


def test_watches_that_end_at_once_do_not_become_a_storm(run):
    script = Script(REFUSES_STREAMS, reply(listing("5", config_map("a", "1"))), stream())
    run(script, {"a": "x"})
    time.sleep(4)
    assert len(script.seen) < 12, f"{len(script.seen)} requests in 4 s"
