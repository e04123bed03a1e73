"""The outbox: gap-free, durable, said once, and honest about what it lost."""

import os
import random
import signal
import subprocess
import sys
import textwrap

import pytest

from smgate.wire import facts
from smgate_agent import outbox


def fault(xid):
    return facts.GpuFaultSeen(gpu_uuid="GPU-1", xid=xid)


def xids(box, **options):
    return [
        fact.payload.xid
        for fact in box.pending(**options)[1]
        if isinstance(fact.payload, facts.GpuFaultSeen)
    ]


def gaps(box):
    return [fact.payload for fact in box.pending()[1] if isinstance(fact.payload, facts.GapNoticed)]


def test_sequences_have_no_gap_and_acknowledged_facts_are_not_sent_again(box):
    for number in range(5):
        assert box.append(fault(number))
    outbox_id, batch = box.pending(limit=3)
    assert [fact.sequence for fact in batch] == [1, 2, 3]
    box.acknowledge(outbox_id=outbox_id, through=2)
    assert xids(box) == [2, 3, 4]
    assert box.standing().depth == 3
    box.append(fault(5))
    assert [fact.sequence for fact in box.pending()[1]] == [3, 4, 5, 6]


def test_facts_survive_closing_and_so_does_what_was_reported(open_outbox):
    box = open_outbox()
    assert box.report("key", fault(1))
    box.close()
    again = open_outbox()
    assert xids(again) == [1]
    assert not again.report("key", fault(1))
    assert again.standing().outbox_id == "outbox-1"


def test_a_fact_is_reported_only_when_it_changed_or_its_salt_did(box):
    assert box.report("key", fault(1))
    assert not box.report("key", fault(1))
    assert box.report("key", fault(1), salt="second start")
    assert box.report("key", fault(2), salt="second start")
    assert box.report("other", fault(2))
    assert box.last_reported("key") == fault(2)
    assert box.last_reported("none") is None
    assert len(box.pending()[1]) == 4


def test_acknowledgements_from_the_past_the_future_or_another_outbox_change_nothing(box):
    box.append(fault(1))
    box.append(fault(2))
    box.acknowledge(outbox_id="another", through=2)
    assert box.standing().acknowledged_through == 0
    box.acknowledge(outbox_id="outbox-1", through=99)
    assert box.standing().acknowledged_through == 2
    box.acknowledge(outbox_id="outbox-1", through=1)
    assert box.standing().acknowledged_through == 2
    box.append(fault(3))
    assert [fact.sequence for fact in box.pending()[1]] == [3]


def test_acknowledged_facts_are_kept_seven_days_and_can_be_sent_again(box, manual_clock):
    for number in range(4):
        box.append(fault(number))
    box.acknowledge(outbox_id="outbox-1", through=2)
    manual_clock.advance(6.9 * 86400)
    box.acknowledge(outbox_id="outbox-1", through=3)
    assert box.rewind()
    assert xids(box) == [0, 1, 2, 3]
    box.acknowledge(outbox_id="outbox-1", through=4)
    manual_clock.advance(8 * 86400)
    box.append(fault(4))
    box.acknowledge(outbox_id="outbox-1", through=5)
    assert box.rewind()
    assert xids(box) == [4]
    assert not box.rewind()


def test_a_damaged_file_is_moved_aside_and_the_loss_has_a_name(open_outbox, tmp_path):
    box = open_outbox()
    box.append(fault(1))
    box.close()
    (tmp_path / "outbox.db").write_bytes(b"this is not a database" * 1000)
    box = open_outbox()
    assert box.append(fault(2))
    assert gaps(box) == [facts.GapNoticed(lost_outbox_id="outbox-1")]
    assert xids(box) == [2]
    assert box.standing().outbox_id == "outbox-2"
    assert box.standing().gap_open
    assert list(tmp_path.glob("outbox.db.damaged-*"))
    box.close_gap()
    box.close_gap()
    assert gaps(box) == [
        facts.GapNoticed(lost_outbox_id="outbox-1"),
        facts.GapNoticed(lost_outbox_id="outbox-1", closed=True),
    ]
    assert not box.standing().gap_open


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_never_stops_the_outbox(open_outbox, tmp_path, seed):
    chance = random.Random(seed)
    box = open_outbox()
    for number in range(50):
        box.append(fault(number))
    box.close()
    path = tmp_path / "outbox.db"
    data = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 400)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data[: chance.randrange(len(data) // 2, len(data) + 1)])
    box = open_outbox()
    box.append(fault(1000))
    assert 1000 in xids(box)
    sequences = [fact.sequence for fact in box.pending()[1]]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


def test_a_file_that_disappeared_is_a_loss_too(open_outbox, tmp_path):
    box = open_outbox()
    box.append(fault(1))
    box.close()
    for path in tmp_path.glob("outbox.db*"):
        path.unlink()
    box = open_outbox()
    box.append(fault(2))
    assert gaps(box) == [facts.GapNoticed(lost_outbox_id="outbox-1")]


def test_a_full_disk_drops_facts_counts_them_and_says_so_when_there_is_room(open_outbox):
    box = open_outbox(bytes_max=1 << 16)  # SQLite itself answers SQLITE_FULL at this size
    stored = 0
    while box.append(fault(stored)):
        stored += 1
        assert stored < 10_000
    assert not box.append(fault(99_999))
    assert box.standing().dropped >= 2
    assert box.standing().gap_open
    sent = box.pending(limit=10_000)[1]
    assert [fact.sequence for fact in sent] == list(range(1, len(sent) + 1))
    box.acknowledge(outbox_id="outbox-1", through=len(sent))
    assert box.append(fault(7))
    after = [fact.payload for fact in box.pending()[1]]
    assert after == [facts.GapNoticed(lost_outbox_id="outbox-1"), fault(7)]
    box.close_gap()
    assert [gap.closed for gap in gaps(box)] == [False, True]


def test_a_gap_by_a_full_disk_has_everything_said_again(open_outbox):
    box = open_outbox(bytes_max=1 << 16)
    box.report("key", fault(1))
    number = 2
    while box.append(fault(number)):
        number += 1
    box.acknowledge(outbox_id="outbox-1", through=number)
    box.append(fault(1))
    assert box.report("key", fault(1))


def test_a_new_outbox_takes_over_what_was_not_acknowledged(box):
    for number in range(4):
        box.append(fault(number))
    box.report("key", fault(9))
    box.acknowledge(outbox_id="outbox-1", through=2)
    box.renew()
    outbox_id, batch = box.pending()
    assert outbox_id == "outbox-2"
    assert [fact.sequence for fact in batch] == [1, 2, 3, 4]
    assert batch[0].payload == facts.GapNoticed(lost_outbox_id="outbox-1")
    assert xids(box) == [2, 3, 9]
    assert box.report("key", fault(9))


def test_a_fact_the_controller_refuses_does_not_hold_up_the_rest(box):
    for number in range(3):
        box.append(fault(number))
    box.renew(without=2)
    assert xids(box) == [0, 2]
    assert box.standing().dropped == 1


def test_a_fact_of_another_version_does_not_hold_up_the_rest(box):
    box.append(fault(1))
    box._file.transact(
        lambda db: db.execute("UPDATE fact SET payload = ?", (b'{"type":"from_the_future"}',))
    )
    box.append(fault(2))
    assert xids(box) == [2]
    assert gaps(box)


def test_a_batch_is_never_larger_than_the_controller_reads(box):
    for number in range(20):
        box.append(
            facts.NodeReported(
                agent_version="1",
                gpus=tuple(
                    facts.Gpu(uuid=f"GPU-{number}-{gpu}", name="n" * 200) for gpu in range(64)
                ),
            )
        )
    sizes = []
    while batch := box.pending()[1]:
        sizes.append(sum(len(outbox.base.encode(fact)) for fact in batch))
        box.acknowledge(outbox_id="outbox-1", through=batch[-1].sequence)
    assert len(sizes) > 1 or sizes[0] < outbox.BATCH_BYTES_MAX
    assert max(sizes) < outbox.base.BODY_BYTES_MAX


WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from smgate.wire import facts
    from smgate_agent import clock, outbox
    box = outbox.Outbox(Path(sys.argv[1]), clock_=clock.SystemClock(), new_id=lambda: "outbox-k")
    number = int(sys.argv[2])
    while True:
        box.append(facts.GpuFaultSeen(gpu_uuid="GPU-1", xid=number))
        print(number, flush=True)
        number += 1
        if number % 5 == 0:
            outbox_id, batch = box.pending(limit=2)
            box.acknowledge(outbox_id=outbox_id, through=batch[-1].sequence)
""")


def test_kill_9_at_any_moment_loses_no_stored_fact_and_repeats_none(tmp_path, open_outbox):
    chance = random.Random(5)
    said: list[int] = []
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "outbox.db"), str(len(said) + 1000)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(chance.randrange(3, 60))]
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.stdout.close()
        writer.wait()
        said += [int(line) for line in lines if line.endswith("\n")]
        # The fact that was being written may be there as well; the next writer leaves it out.
    box = open_outbox()
    box.rewind()
    kept = xids(box, limit=10_000)
    assert set(said) <= set(kept)
    sequences = [fact.sequence for fact in box.pending(limit=10_000)[1]]
    assert sequences == list(range(1, len(sequences) + 1))
    assert not gaps(box)
