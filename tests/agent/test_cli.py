"""`smgate-agent enroll`, `status` and the command line itself."""

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.agent import fake_controller

import smgate_agent
from smgate.wire import facts
from smgate_agent import cli, clock, config, identity, outbox

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def agent(tmp_path, state_dir, capsysbinary, monkeypatch):
    settings = tmp_path / "agent.toml"
    settings.write_text(f'state_dir = "{state_dir}"\n')

    def run(*arguments, stdin=None):
        if stdin is not None:
            path = tmp_path / "stdin"
            path.write_bytes(stdin)
            monkeypatch.setattr(sys, "stdin", path.open())
        status = cli.main([*arguments, "--config", str(settings)])
        if stdin is not None:
            sys.stdin.close()
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(fake_controller.TOKEN + "\n")
    return str(path)


def enroll_arguments(controller, token="-"):
    return (
        "enroll",
        "--controller",
        controller.url,
        "--join-token-file",
        token,
        "--node",
        "node-1",
    )


def test_enrolling_writes_the_credential_for_its_owner_alone(
    agent, controller, token_file, state_dir
):
    status, out, err = agent(*enroll_arguments(controller, token_file))
    assert status == 0
    assert out == f"enrolled as node-1 at {controller.url}\n"
    path = state_dir / "credential.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "node": "node-1",
        "controller_url": controller.url,
        "credential": fake_controller.CREDENTIAL,
        "public_key": controller.key.verify_key.encode().hex(),
        "incarnation": "log-1",
    }
    assert fake_controller.TOKEN not in out + err
    assert fake_controller.CREDENTIAL not in out + err


def test_the_token_may_come_from_standard_input(agent, controller):
    status, _, _ = agent(*enroll_arguments(controller), stdin=fake_controller.TOKEN.encode())
    assert status == 0


def test_a_wrong_token_is_a_refusal_with_its_own_exit_status(agent, controller, state_dir):
    status, out, err = agent(*enroll_arguments(controller), stdin=b"wrong-PLANTED")
    assert (status, out) == (4, "")
    assert "error:" in err
    assert "hint:" in err
    assert "PLANTED" not in err
    assert not (state_dir / "credential.json").exists()


@pytest.mark.parametrize("data", [b"", b"  \n", b"two words", b"\xff\xfe", b"x" * 5000])
def test_what_is_no_token_is_not_sent(agent, controller, data):
    status, _, err = agent(*enroll_arguments(controller), stdin=data)
    assert status == 1
    assert "join token" in err
    assert controller.requests == []


def test_an_absent_controller_is_told_apart(agent, token_file):
    status, _, err = agent(
        "enroll", "--controller", "http://127.0.0.1:9", "--join-token-file", token_file
    )
    assert status == 7
    assert "refused" in err


@pytest.mark.parametrize(
    "url", ["controller:8080", "ftp://x", "http://u:p@x", "http://x?q=1", "", "http://"]
)
def test_an_address_that_is_none_is_a_usage_error(agent, token_file, url):
    status, _, _ = agent("enroll", "--controller", url, "--join-token-file", token_file)
    assert status == 2


def test_a_failed_enrolment_leaves_the_old_credential(agent, controller, token_file, state_dir):
    agent(*enroll_arguments(controller, token_file))
    before = (state_dir / "credential.json").read_bytes()
    agent(*enroll_arguments(controller), stdin=b"wrong")
    assert (state_dir / "credential.json").read_bytes() == before


def test_the_machine_id_is_the_systems_or_a_random_one_that_stays(tmp_path):
    etc = tmp_path / "etc"
    ids = iter(["a" * 32, "b" * 32])
    first = identity.machine_id(tmp_path, etc=etc, new_id=lambda: next(ids))
    assert first == "a" * 32
    assert identity.machine_id(tmp_path, etc=etc, new_id=lambda: next(ids)) == first
    etc.write_text("c" * 32 + "\n")
    assert identity.machine_id(tmp_path, etc=etc, new_id=lambda: next(ids)) == "c" * 32
    etc.write_text("uninitialized\n")
    assert identity.machine_id(tmp_path, etc=etc, new_id=lambda: next(ids)) == first


def test_status_of_a_bare_machine_says_what_there_is_not(agent):
    status, out, _ = agent("status")
    assert status == 0
    assert "not running" in out
    assert "run `smgate-agent enroll`" in out
    assert "none" in out


def test_status_reads_what_the_agent_left_behind(agent, controller, token_file, state_dir):
    agent(*enroll_arguments(controller, token_file))
    box = outbox.Outbox(
        state_dir / "outbox.db", clock_=clock.SystemClock(), new_id=lambda: "outbox-1"
    )
    box.append(facts.GpuFaultSeen(gpu_uuid="GPU-1", xid=13))
    box.append(facts.GpuFaultSeen(gpu_uuid="GPU-1", xid=14))
    box.acknowledge(outbox_id="outbox-1", through=1)
    box.close()
    (state_dir / "status.json").write_bytes(b"broken")
    status, out, _ = agent("status", "-o", "json")
    said = json.loads(out)
    assert status == 0
    assert (said["apiVersion"], said["enrolled"], said["node"]) == (
        "smgate.agent/v1",
        True,
        "node-1",
    )
    assert (said["outbox"]["depth"], said["running"]) == (1, False)
    assert said["instances"] == {}
    assert fake_controller.CREDENTIAL not in out
    assert "1 facts wait" in agent("status")[1]


def test_no_command_is_a_usage_error_and_prints_help_to_stderr(capsys):
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "enroll" in err


def test_the_version_is_the_distributions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == smgate_agent.VERSION


def test_launch_is_handed_on_before_anything_heavy_is_imported():
    script = (
        "import sys\n"
        "from smgate_agent import cli\n"
        "try:\n"
        "    cli.main(['launch', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'msgspec', 'prometheus_client', 'sqlite3', 'pydantic', 'smgate', 'pynvml'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.splitlines()[-1] == "[]"


SETTINGS = [
    ('[[instance]]\nid = "a"\n', "neither url nor log"),
    ('[[instance]]\nid = "a"\nurl = "https://x:1"\n', "url must be"),
    ('[[instance]]\nid = "a"\nlog = "/x"\nnode_rank = 1\n', "node_rank"),
    ('[[instance]]\nid = "a"\nlog = "/x"\n[[instance]]\nid = "a"\nlog = "/y"\n', "two instances"),
    ('[[instance]]\nid = "a"\nlog = "/x"\napi_key = "k"\n', "api_key"),
    ('[[instance]]\nid = "a"\nlog = "/x"\nrestarter = "hook"\n', "goes with a drain_hook"),
    ('[[instance]]\nid = "a"\nlog = "/x"\ndrain_hook = ["/x"]\n', "goes with a drain_hook"),
    (
        '[[instance]]\nid = "a"\nlog = "/x"\nrestarter = "hook"\ndrain_hook = ["x"]\n',
        "absolute path",
    ),
    ("poll_interval_s = 0\n", "poll_interval_s"),
    ("unknown = 1\n", "unknown"),
    ("not toml", "agent.toml"),
]


@pytest.mark.parametrize(("text", "why"), SETTINGS)
def test_settings_that_make_no_sense_are_refused_with_the_place(tmp_path, text, why):
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(config.ConfigError, match=why) as caught:
        config.load(path, {})
    assert str(path) in str(caught.value)


def test_the_environment_overrides_the_file(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text('state_dir = "/a"\nmetrics_port = 1\n')
    settings = config.load(path, {"SMGATE_STATE_DIR": "/b", "SMGATE_AGENT_METRICS_PORT": "2"})
    assert (settings.state_dir, settings.metrics_port) == ("/b", 2)
    with pytest.raises(config.ConfigError):
        config.load(path, {"SMGATE_AGENT_METRICS_PORT": "many"})


@pytest.mark.parametrize("verb", ["status", "doctor"])
def test_a_reader_that_leaves_early_ends_it_quietly(state_dir, verb):
    reader, writer = os.pipe()
    os.close(reader)
    program = "import sys; from smgate_agent import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", program, verb, "--state-dir", str(state_dir)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
