"""Runs a command in namespaces of its own, with parts of the machine taken away."""

import os
import shutil
import subprocess
import sys

from tests import skips

QUIET_RESOLVER = f"""
exec 9<&0; '{os.path.realpath(sys.executable)}' -c '
import os, socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
os.write(1, b"bound")
server.settimeout(60)
while True: server.recv(4096)
' > bound 2>/dev/null &
while [ ! -s bound ]; do sleep 0.02; done; trap "kill $!" EXIT; "$@"; exit $?
"""
"""A name server that hears every question and answers none."""


def argv(setup, command, kinds):
    """`command` after the shell lines of `setup`, in new namespaces of these kinds."""
    skips.needs_namespaces()
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    script = f'set -e\n{setup}\nexec "$@"'
    return ["unshare", *as_root, *kinds, "sh", "-c", script, "sh", *map(str, command)]


def gate(node, command, *, python, setup="", kinds=("--mount",), environ=None, at=None):
    """Run the gate apart; returns the ended process, output captured as text.

    `at` is the name of the node's folder in there, where that is another one.
    """
    archive = node.folder / "smgate-gate.pyz"
    shutil.copy(node.archive, archive)
    launch = [python, "-I", archive, "launch", "--state-dir", node.state, "--", *command]
    inside = [str(part).replace(str(node.folder), at or str(node.folder)) for part in launch]
    given = {
        name: value.replace(str(node.folder), at or str(node.folder))
        for name, value in (node.environ if environ is None else environ).items()
    }
    given.setdefault("PATH", "/usr/sbin:/usr/bin:/bin")
    return subprocess.run(
        argv(setup, inside, kinds),
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=node.folder,
        timeout=60,
        check=False,
    )
