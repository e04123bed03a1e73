"""The recorded fixtures: what SGLang writes today, whole, and with the secrets they were given."""

import json
import re
import subprocess

import pytest

VERSIONS = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
EVERYTHING = ("server_info", "logs", "parsers")
SECRETS = ("sk-PLANTED-api-key-0001", "sk-PLANTED-admin-key-0002", "PLANTED-tls-password-0003")


def recorded(folder, version, kinds=("server_info", "logs")):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for kind in kinds
        for path in (folder / kind).iterdir()
        if path.name.startswith(version)
    }


def record_again(python, script, folder):
    done = subprocess.run(
        [str(python), str(script), str(folder)],
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.sglang
def test_sglang_writes_the_recorded_bytes_again(sglang, fixtures_folder, record_script, tmp_path):
    record_again(sglang.python, record_script, tmp_path)
    again = recorded(tmp_path, sglang.version, EVERYTHING)
    assert again == recorded(fixtures_folder, sglang.version, EVERYTHING)


@pytest.mark.sglang
def test_older_sglang_writes_the_recorded_bytes_again(
    recorded_older, fixtures_folder, record_script, tmp_path
):
    version, python = recorded_older
    record_again(python, record_script, tmp_path)
    again = recorded(tmp_path, version, EVERYTHING)
    assert again == recorded(fixtures_folder, version, EVERYTHING)


def test_the_page_names_every_recorded_file(fixtures_folder):
    page = (fixtures_folder / "README.md").read_text()
    named = set(re.findall(r"`((?:logs|server_info)/[^`*]+)`", page))
    there = {name for version in VERSIONS for name in recorded(fixtures_folder, version)}
    assert named == {name for name in there if not name.endswith(".cri.log")}


def test_every_secret_was_planted_in_every_file(fixtures_folder):
    for version in VERSIONS:
        for name, content in recorded(fixtures_folder, version).items():
            joined = join_cri(content) if name.endswith(".cri.log") else content
            missing = [secret for secret in SECRETS if secret.encode() not in joined]
            assert missing == [], name


def test_the_container_runtime_s_parts_join_to_the_plain_log(fixtures_folder):
    for version in ("0.5.23", "0.5.18"):
        files = recorded(fixtures_folder, version)
        split = [name for name in files if name.endswith(".cri.log")]
        assert split
        for name in split:
            assert join_cri(files[name]) == files[name.replace(".cri.log", ".log")]
            assert max(map(len, files[name].splitlines())) <= 16384 + len(
                "2026-11-30T12:00:00.000000000Z stderr P "
            )


def test_0_5_23_s_arguments_do_not_fit_one_part(fixtures_folder):
    parts = recorded(fixtures_folder, "0.5.23")["logs/0.5.23-target.cri.log"].splitlines()
    begun = [number for number, part in enumerate(parts) if b"server_args=" in part]
    assert len(begun) == 1
    assert b" stderr P " in parts[begun[0]]
    assert b" stderr F " in parts[begun[0] + 1]


def test_no_recording_carries_a_path_of_the_machine_it_was_made_on(fixtures_folder):
    for version in VERSIONS:
        for name, content in recorded(fixtures_folder, version).items():
            assert not re.search(rb"/(?:work|root|tmp|home)/|\.venv", content), name


RUNNERS = {
    "0.5.17": {"auto", "marlin"},
    "0.5.18": {"marlin", "flashinfer_mxfp4"},
    "0.5.23": {"auto", "marlin", "flashinfer_mxfp4"},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_is_what_a_server_of_that_version_answers(fixtures_folder, version):
    bodies = [
        json.loads(content)
        for name, content in recorded(fixtures_folder, version).items()
        if name.startswith("server_info/")
    ]
    assert {body["version"] for body in bodies} == {version}
    between = {"marlin", "flashinfer_mxfp4"}
    assert {body["moe_runner_backend"] for body in bodies} == RUNNERS.get(version, between)
    for body in bodies:
        (state,) = body["internal_states"]
        # The launcher's own words since 0.5.20, keys and all; the world's size since 0.5.19.
        assert ("launch_command" in body) == (version >= "0.5.20")
        assert ("world_size" in state) == (version >= "0.5.19")
        assert state["moe_runner_backend"] == body["moe_runner_backend"]


def join_cri(content):
    """Containerd's parts put together again, written here anew: no parser of ours is asked."""
    joined = b""
    for line in content.splitlines():
        tag, text = line.split(b" ", 3)[2:]
        joined += text + (b"" if tag == b"P" else b"\n")
    return joined
