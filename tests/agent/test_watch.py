"""Watching servers that behave, and servers that do not."""

import dataclasses
import json

import pytest
from tests.agent import samples
from tests.fixtures import fake_sglang

from smgate.wire import facts
from smgate_agent import clock, config, model_files, outbox


def told(box: outbox.Outbox):
    outbox_id, batch = box.pending()
    if batch:
        box.acknowledge(outbox_id=outbox_id, through=batch[-1].sequence)
    return [fact.payload for fact in batch]


def lines(*texts):
    return "".join(text + "\n" for text in texts).encode()


def failures(watcher, source, reason):
    sample = watcher._metrics.failures.labels("k3", source, reason)
    return sample._value.get()


def serve(server, info=samples.SERVER_INFO, model_info=samples.MODEL_INFO):
    server.route("/health")
    server.route("/server_info", info)
    server.route("/model_info", model_info)


def test_a_serving_bf16_server_is_told_by_its_own_words(sglang_server, open_watcher, box):
    serve(sglang_server)
    watcher = open_watcher(url=sglang_server.url)
    watcher.step()
    assert told(box) == [
        facts.InstanceChanged(instance_id="k3", state="serving"),
        facts.EffectiveSeen(
            instance_id="k3",
            runner="auto",
            a2a="none",
            source="server_info",
            architecture="KimiK3ForConditionalGeneration",
            mxfp4=True,
            sglang_version="0.5.23",
        ),
        facts.WeightsSeen(instance_id="k3", weight_bytes=647 << 30),
        facts.MemoryFallbackSeen(instance_id="k3", phase="active"),
    ]
    registry = watcher._metrics.registry
    name = "smgate_agent_memory_fallback_active"
    labels = {"instance": "k3", "phase": "active"}
    assert registry.get_sample_value(name, labels) == 1
    assert registry.get_sample_value(name, {**labels, "phase": "crashed"}) == 0
    watcher.step()
    assert told(box) == []


def test_a_fallback_is_seen_before_it_happens_by_the_log_alone(log, open_watcher, box):
    watcher = open_watcher(url="http://127.0.0.1:9", log=str(log.path))
    watcher.step()
    assert told(box) == []
    log.write(lines(samples.ARGS_DICT % "auto"))
    watcher.step()
    assert [fact.state for fact in told(box)] == ["starting"]
    log.write(lines(samples.INIT))
    watcher.step()
    seen = told(box)
    assert facts.MemoryFallbackSeen(instance_id="k3", phase="imminent") in seen
    assert seen[0].source == "log"
    log.write(lines(*samples.UPCAST_CRASH, samples.SIGQUIT))
    watcher.step()
    seen = told(box)
    assert seen[0].state == "exited"
    assert seen[-1] == facts.MemoryFallbackSeen(instance_id="k3", phase="crashed")


@pytest.mark.parametrize("printed", [samples.ARGS_REPR, samples.ARGS_DICT % "auto"])
def test_a_follower_with_only_its_log_attests_its_own_backend(log, open_watcher, box, printed):
    watcher = open_watcher(log=str(log.path), nnodes=2, node_rank=1, unit_name="u")
    log.write(lines(printed, samples.INIT_OLD, samples.LOAD_END, samples.FOLLOWER_READY))
    watcher.step()
    first = told(box)
    assert (first[0].state, first[0].node_rank, first[0].unit_name) == ("serving", 1, "u")
    assert (first[1].runner, first[1].source) == ("auto", "log")
    assert first[-1].phase == "active"


def test_a_followers_dummy_port_is_not_asked_what_it_resolved(sglang_server, open_watcher, box):
    sglang_server.route("/health")
    watcher = open_watcher(url=sglang_server.url, nnodes=2, node_rank=1)
    watcher.step()
    assert [type(fact) for fact in told(box)] == [facts.InstanceChanged]
    assert sglang_server.requests == ["/health"]
    assert watcher.view.verdict.known is False


def test_a_key_is_sent_from_its_file_and_a_missing_key_leaves_the_pair_unknown(
    tmp_path, open_watcher, box
):
    with fake_sglang.FakeSglang(api_key=samples.SECRET) as server:
        serve(server)
        key = tmp_path / "key"
        watcher = open_watcher(url=server.url, api_key_file=str(key))
        watcher.step()
        assert [type(fact) for fact in told(box)] == [facts.InstanceChanged]
        key.write_text(samples.SECRET + "\n")
        watcher.step()
        assert any(isinstance(fact, facts.EffectiveSeen) for fact in told(box))


def test_a_wrong_type_in_one_field_leaves_the_rest_readable(sglang_server, open_watcher, box):
    body = json.loads(samples.SERVER_INFO)
    body["internal_states"] = "none of your business"
    body["version"] = 23
    serve(sglang_server, info=json.dumps(body).encode())
    watcher = open_watcher(url=sglang_server.url)
    watcher.step()
    effective = next(fact for fact in told(box) if isinstance(fact, facts.EffectiveSeen))
    assert (effective.runner, effective.sglang_version) == ("auto", None)
    assert watcher.view.weight_bytes is None


def test_a_log_is_followed_through_rotation_and_truncation(log, open_watcher, box):
    watcher = open_watcher(log=str(log.path))
    log.write(lines(samples.ARGS_DICT % "auto", samples.INIT))
    watcher.step()
    told(box)
    log.write(lines(samples.LOAD_END))
    log.rotate()
    log.write(lines(samples.READY))
    watcher.step()
    assert told(box)[0].state == "serving"
    log.truncate()
    log.write(lines(samples.ARGS_DICT % "marlin"))
    watcher.step()
    assert [(fact.state, fact.restarts) for fact in told(box)[:1]] == [("starting", 1)]


def test_history_in_an_old_log_makes_one_present_state_and_no_past(log, open_watcher, box):
    life = [samples.ARGS_DICT % "auto", samples.INIT, samples.LOAD_END, samples.READY]
    log.write(lines(*life, samples.SIGQUIT, *life, samples.SIGQUIT, *life))
    watcher = open_watcher(log=str(log.path))
    watcher.step()
    states = [fact for fact in told(box) if isinstance(fact, facts.InstanceChanged)]
    assert [(fact.state, fact.restarts) for fact in states] == [("serving", 2)]


def test_a_restarted_agent_goes_on_where_it_stopped_and_says_nothing_twice(log, open_watcher, box):
    life = [samples.ARGS_DICT % "auto", samples.INIT, samples.LOAD_END, samples.READY]
    log.write(lines(*life))
    first = open_watcher(log=str(log.path))
    first.step()
    assert told(box)
    second = open_watcher(log=str(log.path))
    second.step()
    assert told(box) == []
    log.write(lines(samples.SIGQUIT, *life))
    third = open_watcher(log=str(log.path))
    third.step()
    assert told(box)[0].restarts == 1


def test_a_restarted_agent_does_not_count_a_start_again_when_its_place_is_lost(
    tmp_path, log, open_watcher, box
):
    life = [samples.ARGS_DICT % "auto", samples.INIT, samples.LOAD_END, samples.READY]
    log.write(lines(*life, samples.SIGQUIT, *life))
    open_watcher(log=str(log.path)).step()
    assert told(box)[0].restarts == 1
    for path in (tmp_path / "watch").glob("*"):
        path.write_bytes(b"{broken")
    open_watcher(log=str(log.path)).step()
    assert told(box) == []


def test_a_restarted_agent_reads_what_a_rotation_took_away_from_under_it(log, open_watcher, box):
    life = [samples.ARGS_DICT % "auto", samples.INIT, samples.LOAD_END, samples.READY]
    log.write(lines(*life))
    open_watcher(log=str(log.path)).step()
    told(box)
    log.write(lines(samples.SIGQUIT, samples.ARGS_DICT % "marlin", samples.INIT))
    log.rotate()
    log.write(lines(samples.LOAD_END, samples.READY))
    watcher = open_watcher(log=str(log.path))
    watcher.step()
    assert watcher.view.runner == "marlin"
    restarts = [one.restarts for one in told(box) if isinstance(one, facts.InstanceChanged)]
    assert restarts == [1]


def test_a_line_in_parts_is_read_whole_over_a_rotation(log, open_watcher, box):
    args = samples.ARGS_DICT % "marlin"
    watcher = open_watcher(log=str(log.path), log_format="cri")
    log.write(b"t stderr P " + args[:400].encode() + b"\n")
    watcher.step()
    log.rotate()
    log.write(b"t stderr F " + args[400:].encode() + b"\nt stderr F " + samples.INIT.encode())
    log.write(b"\n")
    watcher.step()
    assert watcher.view.runner == "marlin"


@pytest.mark.parametrize("process", ["unknown", "alive"])
def test_what_a_log_told_before_a_part_of_it_was_lost_counts_only_if_the_process_is_known(
    log, open_watcher, box, process
):
    life = [samples.ARGS_DICT % "flashinfer_mxfp4", samples.INIT, samples.LOAD_END, samples.READY]
    log.write(lines(*life))
    open_watcher(log=str(log.path), node_rank=1, nnodes=2).step()
    assert [type(one) for one in told(box)][:2] == [facts.InstanceChanged, facts.EffectiveSeen]
    log.path.unlink()
    log.write(b"Decode batch, of whom nobody knows\n")
    watcher = open_watcher(log=str(log.path), node_rank=1, nnodes=2, process=lambda: process)
    watcher.step()
    assert told(box) == []  # it is not known, and nothing of it is taken back
    assert (watcher.view.runner is None) is (process == "unknown")
    assert watcher.view.state == "serving"  # as it was told last
    log.write(lines(samples.SIGQUIT))
    watcher.step()
    assert told(box)[0].state == "exited"
    log.write(lines(samples.ARGS_DICT % "marlin", samples.INIT))
    watcher.step()
    assert (watcher.view.runner, watcher.view.state, watcher.view.restarts) == (
        "marlin",
        "starting",
        1,
    )


def test_log_records_that_are_not_what_was_declared_are_counted(log, open_watcher):
    watcher = open_watcher(log=str(log.path), log_format="docker")
    log.write(b"this is no docker log\n")
    watcher.step()
    assert failures(watcher, "log", "malformed") == 1


def test_a_launch_record_links_the_instance(tmp_path, sglang_server, open_watcher, box):
    serve(sglang_server)
    folder = tmp_path / "launches"
    folder.mkdir()
    (folder / "broken.json").write_bytes(b"\xff{")
    record = {"launch_id": "l-1", "started_at_us": 5, "unit_name": "u", "from_the_future": 1}
    (folder / "l-1.json").write_text(json.dumps(record))
    (folder / "l-0.json").write_text(json.dumps({"launch_id": "l-0", "started_at_us": 4}))
    watcher = open_watcher(url=sglang_server.url, manual=_early())
    watcher.step()
    first = told(box)[0]
    assert (first.launch_id, first.unit_name) == ("l-1", "u")


def _early():
    return clock.ManualClock(now_us=10)


def test_no_secret_of_a_server_is_in_any_file_of_the_agent(
    tmp_path, sglang_server, log, open_watcher, box
):
    serve(sglang_server)
    log.write(
        lines(samples.ARGS_REPR, samples.INIT, *samples.UPCAST_CRASH, samples.ARGS_DICT % "auto")
    )
    state = tmp_path / "state"
    state.mkdir()
    watcher = open_watcher(url=sglang_server.url, log=str(log.path))
    watcher.step()
    watcher.step()
    assert told(box)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != log.path]
    assert any("watch" in str(path) for path in kept)
    for path in kept:
        assert samples.SECRET.encode() not in path.read_bytes(), path
    assert samples.SECRET not in repr(dataclasses.asdict(watcher.view))


COMMIT = "0123456789" * 4


def test_a_model_named_by_repository_is_found_in_the_hugging_face_cache(tmp_path):
    cache = tmp_path / "hub/models--org--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text(COMMIT)
    snapshot = cache / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(samples.K3_CONFIG))
    (snapshot / "a.safetensors").write_bytes(b"x" * 100)
    declared = config.Instance(id="i", log="/x")
    found, weight = model_files.ModelFiles(str(tmp_path)).look(declared, None, "org/model")
    assert (found.architecture, found.mxfp4, weight) == (
        samples.K3_CONFIG["architectures"][0],
        True,
        100,
    )
    for path in ("org/other", "../../etc", "org/model/x", "s3://bucket/model"):
        looked = model_files.ModelFiles(str(tmp_path)).look(declared, None, path)
        assert looked == model_files.NOTHING


def test_a_model_directory_is_read_and_weighed_once(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(samples.K3_CONFIG))
    declared = config.Instance(id="i", log="/x")
    finder = model_files.ModelFiles()
    first = finder.look(declared, None, str(tmp_path))
    assert first[0].mxfp4 is True
    assert first[1] is None
    (tmp_path / "config.json").write_text("{}")
    assert finder.look(declared, None, str(tmp_path)) == first
