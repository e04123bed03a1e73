"""What stands around the gate in these tests: a command, a Python with SGLang, a controller."""

import contextlib
import importlib.util
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time

import nacl.signing

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = """#!{python}
import json, os, signal, sys
names = {{n.name: repr(signal.getsignal(n)) for n in signal.valid_signals() if hasattr(n, "name")}}
status = dict(l.split(":", 1) for l in open("/proc/self/status").read().splitlines() if ":" in l)
json.dump(
    {{
        "argv": sys.argv,
        "pid": os.getpid(),
        "ignored": status["SigIgn"].strip(),
        "blocked": status["SigBlk"].strip(),
        "environ": open("/proc/self/environ").read().split("\\0")[:-1],
        "fds": sorted(os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")
                      if os.path.exists(f"/proc/self/fd/{{fd}}")),
        "cwd": os.getcwd(),
        "children": open(f"/proc/self/task/{{os.getpid()}}/children").read().split(),
    }},
    open(os.environ["DUMP"], "w"),
)
print("served")
"""

BUILD = {
    "sglang": "0.5.23",
    "flashinfer_python": "0.7.2.post1",
    "nvidia_cutlass_dsl": "4.8.0",
    "torch": "2.13.0",
}
KEY = nacl.signing.SigningKey(b"\x07" * 32)
PUBLIC_KEY = bytes(KEY.verify_key).hex()


def build_archive(folder):
    """The gate's archive, built from these sources by the script that ships it."""
    spec = importlib.util.spec_from_file_location("build_gate", ROOT / "ops/dev/build_gate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build(folder / "smgate-gate.pyz")


def write_command(path, python=sys.executable):
    """A stand-in for a command: it writes down how it was started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(COMMAND.format(python=python))
    path.chmod(0o755)
    return path


def write_site(folder, build=BUILD, torch_cuda="13.0"):
    """A folder for PYTHONPATH with what the packages of a real environment leave to be read."""
    for name, version in build.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for package in ("flashinfer", "torch", "sglang"):
        (folder / package).mkdir()
        # Importing any of them is a mistake that takes seconds in a real environment.
        (folder / package / "__init__.py").write_text("import os; os._exit(99)\n")
    (folder / "flashinfer" / "_build_meta.py").write_text(f"__git_commit__ = '{'be' * 20}'\n")
    (folder / "flashinfer" / "artifacts.py").write_text(
        f"class CheckSumHash:\n    TRTLLM_GEN_BMM: str = (\n        '{'49' * 32}'\n    )\n"
    )
    (folder / "torch" / "version.py").write_text(f"cuda: str = {torch_cuda!r}\n")
    return folder


def sign(directive, key=KEY):
    """A signed directive, built by hand and signed by PyNaCl."""
    text = json.dumps(directive, ensure_ascii=False)
    return {"signed": text, "signature": key.sign(text.encode()).signature.hex()}


def directive(*units, node="node-a", generation=42, incarnation="log-1", modes=None):
    return {
        "wire_version": 1,
        "incarnation": incarnation,
        "generation": generation,
        "node": node,
        "issued_at_us": 1_700_000_000_000_000 + generation,
        "units": list(units),
        "modes": modes or {},
    }


def entry(launch, form="append", value="marlin", code="no_rollout", **changes):
    """A unit's override that speaks of the launch in a request."""
    unit = {
        "unit": "node-a:00000000",
        "form": form,
        "value": value,
        "code": code,
        "sentence": "No rollout covers this unit.",
        "launch_ids": [launch["launch_id"]],
        "given_for": {},
        "decided_at": 41,
    }
    unit.update(changes)
    return unit


def answer(signed=None, **changes):
    return {"unit": "node-a:00000000", "kernel_key": None, "directive": signed, **changes}


def http_answer(body, status="200 OK", headers=""):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
    return head.encode() + content


class Controller:
    """Listens on loopback or a Unix socket and answers with whatever bytes the test says.

    `reply(request)` gets `(method, path, body as JSON or None, credential)` and returns bytes,
    an iterator of bytes to send one after another, or None to say nothing at all.
    """

    def __init__(self, reply, path=None):
        self.reply = reply
        self.received = b""
        self.requests = []
        self.path = path
        if path is None:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(path))
            self.listener.listen()
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(10)

    def _accept(self):
        while not self.stopped.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            request = self._read(connection)
            if request is None:
                return
            self.requests.append(request)
            reply = self.reply(request)
            for part in [reply] if isinstance(reply, bytes) else reply or self._silence():
                connection.sendall(part)

    def _silence(self):
        self.stopped.wait(60)
        return ()

    def _read(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        while len(body) < int(headers.get("content-length", 0)):
            body += connection.recv(65536)
        self.received += head + body
        method, path, _ = lines[0].split()
        return method, path, json.loads(body) if body else None, headers.get("authorization")

    def launches(self):
        return [body["launch"] for _, path, body, _ in self.requests if path == "/v1/agent/launch"]

    def facts(self):
        return [
            fact
            for _, path, body, _ in self.requests
            if path == "/v1/agent/facts"
            for fact in body["facts"]
        ]


def honest(decide, delay_s=0.0):
    """Replies that decide at once, or only on the later question if `delay_s` is given."""
    state = {}

    def reply(request):
        method, path, body, _ = request
        if path == "/v1/agent/facts":
            return http_answer(
                {"acknowledged_through": 9, "head": {"position": 1, "chain": "0123456789abcdef"}}
            )
        if method == "POST":
            state["launch"] = body["launch"]
            if delay_s:
                return http_answer(answer())
        else:
            launch_id, _, wait_s = path.removeprefix("/v1/agent/launch/").partition("?wait=")
            assert launch_id == state["launch"]["launch_id"]
            assert 1 <= int(wait_s) <= 20
            time.sleep(delay_s)
        return http_answer(answer(sign(decide(state["launch"]))))

    return reply


class Node:
    """A machine with the gate, a command and a state folder."""

    def __init__(self, folder, archive):
        self.folder = folder
        self.archive = archive
        self.state = folder / "state"
        self.state.mkdir()
        self.dump = folder / "dump.json"
        self.command = write_command(folder / "bin" / "sglang")
        self.environ = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(write_site(folder / "site")),
            "DUMP": str(self.dump),
            "HOME": str(folder),
            "SMGATE_AGENT_SOCKET": str(folder / "agent.sock"),
        }
        self.took_s = 0.0
        self.stderr = ""

    def enroll(self, url, **changes):
        value = {
            "node": "node-a",
            "controller_url": url,
            "credential": "node-credential-of-a",
            "public_key": PUBLIC_KEY,
            "incarnation": "log-1",
        }
        value.update(changes)
        (self.state / "credential.json").write_text(json.dumps(value))

    def hold(self, held, key=KEY):
        (self.state / "directive.json").write_text(json.dumps(sign(held, key)))

    def launch(self, *argv, options=(), environ=None, python=sys.executable, timeout=60):
        """Run the archive under a bare `python -I`; returns what the command wrote down."""
        self.dump.unlink(missing_ok=True)
        began = time.monotonic()
        process = subprocess.Popen(
            [
                str(python),
                "-I",
                str(self.archive),
                "launch",
                "--state-dir",
                str(self.state),
                *options,
                "--",
                *(argv or ("sglang", "serve", "--model-path", "nowhere/at-all")),
            ],
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            process.kill()
        self.took_s = time.monotonic() - began
        self.stderr = stderr.decode()
        assert process.returncode == 0, self.stderr
        assert stdout == b"served\n"
        seen = json.loads(self.dump.read_text())
        assert seen["pid"] == process.pid
        return seen
