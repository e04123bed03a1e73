"""`smgate-agent golden`: a job's count of wrong answers, handed on once however often it is sent."""

import json

import pytest
from tests.agent import fake_controller

from smgate.wire import facts
from smgate_agent import cli, golden

RESULT = {
    "run": "nightly-17",
    "finished_at_us": 1_764_480_000_000_000,
    "set_digest": "00aa11bb22cc33dd",
    "prompts": 64,
    "mismatches": 3,
}


@pytest.fixture
def agent(tmp_path, capsys):
    settings = tmp_path / "agent.toml"
    settings.write_text(f'state_dir = "{tmp_path / "state"}"\n')
    (tmp_path / "state").mkdir()

    def run(result, instance="k3-0"):
        file = tmp_path / "result.json"
        file.write_text(result if isinstance(result, str) else json.dumps(result))
        arguments = ["golden", "--instance", instance, "--file", str(file)]
        status = cli.main([*arguments, "--config", str(settings)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def enrolled(agent, tmp_path, controller, capsys):
    (tmp_path / "token").write_text(fake_controller.TOKEN)
    arguments = ["enroll", "--controller", controller.url, "--node", "node-1"]
    arguments += ["--join-token-file", str(tmp_path / "token")]
    assert cli.main([*arguments, "--config", str(tmp_path / "agent.toml")]) == 0
    capsys.readouterr()
    return agent


def test_it_is_reported_as_one_fact(enrolled, controller):
    status, out, _ = enrolled(RESULT)
    assert (status, out) == (0, "reported: 3 of 64 came out wrong on k3-0\n")
    assert controller.payloads(facts.GoldenFinished) == [
        facts.GoldenFinished(
            instance_id="k3-0", set_digest="00aa11bb22cc33dd", prompts=64, mismatches=3
        )
    ]


def test_the_same_run_sent_again_is_the_same_and_another_is_another(enrolled, controller):
    enrolled(RESULT)
    assert enrolled(RESULT)[0] == 0
    enrolled({**RESULT, "run": "nightly-18"})
    bodies = [json.loads(one[3]) for one in sent(controller)]
    assert bodies[0] == bodies[1]
    assert bodies[0]["outbox_id"] != bodies[2]["outbox_id"]


def sent(controller):
    return [one for one in controller.requests if one[1] == "/v1/agent/facts"]


@pytest.mark.parametrize(
    "result",
    [
        "{",
        "[]",
        {**RESULT, "prompts": 0},
        {**RESULT, "mismatches": -1},
        {**RESULT, "mismatches": 65},
        {**RESULT, "set_digest": "my prompts"},
        {**RESULT, "answers": ["the answer itself"]},
        {name: value for name, value in RESULT.items() if name != "run"},
    ],
    ids=str,
)
def test_what_is_no_result_is_refused_and_nothing_is_sent(enrolled, controller, result):
    status, _, err = enrolled(result)
    assert status == 2
    assert "Not a result" in err
    assert sent(controller) == []


def test_a_node_that_is_not_enrolled_is_told_so(agent):
    status, _, err = agent(RESULT)
    assert (status, "not enrolled" in err) == (4, True)


def test_an_instance_that_is_no_name_is_refused(enrolled):
    assert enrolled(RESULT, instance="k3 0")[0] == 2


def test_an_absent_controller_is_said_and_the_job_sends_it_again(enrolled, controller, tmp_path):
    path = tmp_path / "state" / "credential.json"
    credential = json.loads(path.read_text())
    path.write_text(json.dumps({**credential, "controller_url": "http://127.0.0.1:9"}))
    status, _, err = enrolled(RESULT)
    assert status == 7
    assert "Send it again" in err
    path.write_text(json.dumps({**credential, "credential": "not-ours"}))
    assert enrolled(RESULT)[0] == 4


def test_a_file_that_is_too_long_is_not_read():
    with pytest.raises(golden.GoldenError):
        golden.read(json.dumps(RESULT).encode() + b" " * golden.FILE_BYTES_MAX + b"}")
