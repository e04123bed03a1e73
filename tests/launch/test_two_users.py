"""The agent and a server as two users of one host: what the server's gate has, and what it has not.

As root with users that nobody has; elsewhere everything is this one user, and the modes are compared.
"""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback

import pytest
from tests.launch import nvml_library, stand_ins
from tests.launch.asking import ENFORCE, SAFE, TARGET, decide, serve

from smgate.wire import directive
from smgate_agent import gate_folder, identity, launch_records
from smgate_agent.launch import whole_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENT, SERVER, STRANGER = 61001, 61002, 61003
GROUP = AGENT
IS_ROOT = os.geteuid() == 0
CREDENTIAL = "node-credential-of-a"


def as_user(uid, groups, work):
    """Run `work` in a process of this user; what it raises fails the test."""
    if not IS_ROOT:
        work()
        return
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def python_of_everybody(folder):
    """An interpreter that other users can start."""
    for path in (os.path.realpath(sys.executable), shutil.which("python3", path="/usr/bin:/bin")):
        # By a shell: setpriv itself finds what it starts with the rights it is about to give up.
        command = ["setpriv", "--reuid", str(SERVER), "--clear-groups", "/bin/sh", "-c"]
        command.append(f"exec {path} -c ''")
        if path and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return path
    pytest.fail(f"no Python that another user may start, looked for beside {folder}")


@pytest.fixture
def host(archive):
    """A machine with an enrolled agent of its own user; everybody passes the folders above."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o777)
        shutil.copy(archive, folder / "gate.pyz")
        (folder / "gate.pyz").chmod(0o644)
        node = stand_ins.Node(folder, folder / "gate.pyz")
        node.state.chmod(gate_folder.FOLDER_MODE)
        gpus = [{"uuid": "GPU-0000-aaaa", "sm": "10.7"}]
        node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(folder / "nvml", gpus))
        node.k3 = folder / "models"
        node.k3.mkdir()
        shutil.copy(ROOT / "tests/fixtures/sglang/k3_config.json", node.k3 / "config.json")
        if IS_ROOT:
            os.chown(node.state, AGENT, GROUP)
            node.python = python_of_everybody(folder)
            stand_ins.write_command(node.command, node.python)
        as_user(AGENT, [GROUP], lambda: begin(node.state))
        yield node


def begin(state):
    """What the agent does when it is enrolled and starts."""
    gate_folder.prepare(state)
    answer = directive.EnrollAnswer(
        node="node-a",
        credential=CREDENTIAL,
        public_key=stand_ins.PUBLIC_KEY,
        incarnation="log-1",
    )
    identity.save(state, "http://127.0.0.1:9", answer)
    held = json.dumps(stand_ins.sign(stand_ins.directive(modes=ENFORCE))).encode()
    whole_file.replace(state / "directive.json", held, mode=whole_file.PUBLIC)


def launch(node, uid, groups=()):
    """A server's launch by this user; what was appended."""
    if not IS_ROOT:
        return serve(node, node.k3)
    wrapper = node.folder / f"python-{uid}"
    given = f"--groups {','.join(map(str, groups))}" if groups else "--clear-groups"
    become = f'setpriv --reuid {uid} --regid {uid} {given} /bin/sh -c \'exec "$0" "$@"\''
    wrapper.write_text(f'#!/bin/sh\nexec {become} {node.python} "$@"\n')
    wrapper.chmod(0o755)
    node.dump.unlink(missing_ok=True)
    return serve(node, node.k3, python=wrapper)


@pytest.fixture
def listening(host):
    """The agent's socket, as the agent leaves it, with a controller that grants the target behind."""
    answers = stand_ins.honest(decide("append", "flashinfer_mxfp4", "granted"))
    public = {"node": "node-a", "public_key": stand_ins.PUBLIC_KEY, "incarnation": "log-1"}

    def reply(request):
        if request[1] == "/v1/agent/identity":
            return stand_ins.http_answer(public)
        return answers(request)

    socket = host.folder / "agent.sock"
    with stand_ins.Controller(reply, path=socket) as controller:
        socket.chmod(0o660)
        if IS_ROOT:
            os.chown(socket, AGENT, GROUP)
        yield controller


def test_a_server_in_the_agents_group_is_steered_and_its_gate_leaves_word(host, listening):
    assert launch(host, SERVER, [GROUP]) == TARGET
    (kept,) = (host.state / "last_appended").iterdir()
    assert json.loads(kept.read_text())["value"] == "flashinfer_mxfp4"
    owner = SERVER if IS_ROOT else os.geteuid()
    (record,) = (host.state / "launches").glob("*.json")
    assert (record.stat().st_uid, kept.stat().st_uid) == (owner, owner)

    def agent():
        (one,) = launch_records.read_all(host.state, now_us=0)
        assert one.gpu_uuids == ("GPU-0000-aaaa",)
        later_us = one.started_at_us + (launch_records.KEEP_RECORDS_S + 1) * 1_000_000
        assert launch_records.read_all(host.state, now_us=later_us) == ()

    as_user(AGENT, [GROUP], agent)
    assert not record.exists(), "the agent clears away what is old, whoever wrote it"


def test_while_the_agent_is_away_its_group_goes_by_the_directive_and_strangers_start_untouched(
    host,
):
    assert launch(host, SERVER, [GROUP]) == SAFE
    if IS_ROOT:
        assert launch(host, STRANGER) == []
        assert len(list((host.state / "launches").glob("*.json"))) == 1


def test_two_servers_of_two_users_remember_one_after_the_other(host, listening):
    assert launch(host, SERVER, [GROUP]) == TARGET
    assert launch(host, STRANGER, [GROUP]) == TARGET  # it is in the group now
    (kept,) = (host.state / "last_appended").iterdir()
    assert kept.stat().st_uid == (STRANGER if IS_ROOT else os.geteuid())
    assert len(list((host.state / "launches").glob("*.json"))) == 2


def test_the_group_gets_no_secret_and_nobody_else_gets_anything(host):
    modes = {
        path.relative_to(host.state).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (host.state, *host.state.rglob("*"))
    }
    assert modes == {
        ".": gate_folder.FOLDER_MODE,
        "credential.json": 0o600,
        "directive.json": 0o644,
        "identity.json": 0o644,
        **gate_folder.PARTS,
    }
    assert CREDENTIAL not in (host.state / "identity.json").read_text()
    if not IS_ROOT:
        return

    def member():
        assert (host.state / "identity.json").read_text()
        with pytest.raises(PermissionError):
            (host.state / "credential.json").read_text()
        with pytest.raises(PermissionError):
            os.listdir(host.state)
        with pytest.raises(PermissionError):
            (host.state / "directive.json").unlink()
        # Nor is a folder there that another user's gate writes to exchanged for something else.
        with pytest.raises(PermissionError):
            (host.state / "launches/disagreed").rename(host.state / "launches/away")

    def stranger():
        with pytest.raises(PermissionError):
            (host.state / "identity.json").read_text()

    as_user(SERVER, [GROUP], member)
    as_user(STRANGER, [], stranger)


def test_what_the_doctor_says_of_a_user_is_what_the_kernel_says(host):
    paths = [host.state / name for name in (*gate_folder.PARTS, "identity.json", "credential.json")]
    users = (
        {AGENT: [GROUP], SERVER: [GROUP], STRANGER: []}
        if IS_ROOT
        else {os.geteuid(): os.getgroups()}
    )
    for uid, groups in users.items():
        gids = frozenset([uid, *groups]) if IS_ROOT else frozenset([os.getegid(), *groups])
        user = gate_folder.User(uid=uid, gids=gids)

        def compare(user=user):
            for path in paths:
                for want in (os.R_OK, os.W_OK, os.R_OK | os.W_OK | os.X_OK):
                    assert user.may(path, want) == os.access(path, want), (user, path, want)

        as_user(uid, groups, compare)
    member = gate_folder.User(uid=SERVER, gids=frozenset([SERVER, host.state.stat().st_gid]))
    assert list(gate_folder.closed_to(member, host.state)) == []
    stranger = gate_folder.User(uid=STRANGER, gids=frozenset([STRANGER]))
    assert len(list(gate_folder.closed_to(stranger, host.state))) == 1 + len(gate_folder.PARTS)


def test_a_record_that_names_another_file_takes_nothing_away(host):
    folder = host.state / "launches"
    (folder / "x").mkdir()
    for name in ("x/../../directive", "other"):
        (folder / "evil.json").write_text(json.dumps({"launch_id": name, "started_at_us": 1}))
        assert launch_records.read_all(host.state, now_us=1 << 60) == ()
        assert (host.state / "directive.json").exists()


def test_what_was_closed_before_is_opened_and_a_link_is_not_followed(tmp_path):
    aside = tmp_path / "aside"
    aside.mkdir(mode=0o700)
    state = tmp_path / "state"
    state.mkdir()
    (state / "launches").mkdir(mode=0o755)
    (state / "models").symlink_to(aside)
    (state / "last_appended").write_text("no folder")
    gate_folder.prepare(state)
    assert stat.S_IMODE((state / "launches").stat().st_mode) == gate_folder.PARTS["launches"]
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700
    assert (state / "last_appended").is_file()
    assert (state / "dry_resolved").is_dir()
