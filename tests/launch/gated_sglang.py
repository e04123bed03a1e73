"""A server of several ranks that waits as SGLang does behind `--gated-launch-port`, and little else.

As `sglang/srt/distributed/gated_launch.py` does it, 0.5.19 to 0.5.23, which `tests/sglang/test_gate.py`
runs: rank 0 listens in a thread whose failure nobody sees, and repeats a broadcast; a rank without the
flag goes on to another collective, and ranks in two of them hang.
A rank that loses another one ends with an error.
"""

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

POLL_S = 0.1
OPEN = []
"""What listens for as long as the server is there."""


def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def note(event, **more):
    with open(os.environ["EVENTS"], "a") as stream:
        stream.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")


class Door(BaseHTTPRequestHandler):
    activated = False

    def do_POST(self):
        Door.activated = Door.activated or self.path == "/gate/activate"
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, *_):
        pass


def listen(host, port):
    HTTPServer.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = HTTPServer((host, port), Door)
    except OSError:
        sys.exit(1)  # ends this thread alone, as uvicorn's does
    server.serve_forever()


def hang():
    note("hangs")
    time.sleep(3600)


def world():
    host, _, port = option("--dist-init-addr").rpartition(":")
    rank, nnodes = int(option("--node-rank")), int(option("--nnodes"))
    if rank:
        while True:
            try:
                joined = socket.create_connection((host, int(port)))
            except OSError:
                time.sleep(POLL_S)
                continue
            joined.sendall(bytes([rank]))
            return [joined]
    found = {}
    OPEN.append(socket.create_server((host, int(port))))
    while len(set(found) - {b""}) < nnodes - 1:
        joined, _ = OPEN[0].accept()
        found.setdefault(joined.recv(1), joined)
    found.pop(b"", None)
    return list(found.values())


def collective(others, kind, value):
    """One step all ranks take together: rank 0 says it, the others take it over."""
    if int(option("--node-rank")) == 0:
        for other in others:
            other.sendall(kind + bytes([value]))
        answers = [other.recv(1) for other in others]
    else:
        heard = others[0].recv(2)
        others[0].sendall(kind)
        answers, value = [heard[:1]], heard[1] if len(heard) > 1 else 0
    if b"" in answers:
        note("lost a rank")
        os._exit(1)
    if answers != [kind] * len(answers):
        hang()
    return value


def main():
    note("started", argv=sys.argv[1:])
    time.sleep(float(os.environ.get("IMPORT_S", "0")))
    others = world()
    port = option("--gated-launch-port")
    note("joined", gated=port is not None)
    if port is not None:
        if int(option("--node-rank")) == 0:
            where = option("--host", "127.0.0.1"), int(port)
            threading.Thread(target=listen, args=where, daemon=True).start()
        while not collective(others, b"B", int(Door.activated)):
            time.sleep(POLL_S)
        note("activated")
    collective(others, b"R", 0)
    note("served")
    while not os.path.exists(os.environ["STOP"]):
        time.sleep(POLL_S)


main()
