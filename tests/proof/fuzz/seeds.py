"""Makes the first files of the corpus: ``python -m proof.fuzz.seeds``. What was found since is kept beside them."""

from __future__ import annotations

import json

from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord, Participant, PartOf
from holdfast.persistence.format.constants import (
    ENTRY_DEAD,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLOOR,
    ENTRY_LOST,
    ENTRY_RETURNED,
    ENTRY_TAKEN_AWAY,
    FLAG_CLEAN_CLOSE,
    FLAGS_SINGLE,
    FORMAT_VERSION,
    FRAMES_START,
    KIND_COMMIT_RECORD,
    KIND_MARK,
    KIND_SEAL,
)
from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.format.framing import encode_batch, encode_frame
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.persistence.format.message_options import MessageOptions
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.groups.position_entry import (
    NO_HINT,
    Change,
    dead_change,
    encode_entry,
    returned_change,
    run_flags,
)
from holdfast.persistence.groups.vote import Vote, outcome_changes, vote_changes
from holdfast.persistence.outcomes.outcome_log import COMMITTED, OutcomeEntry
from holdfast.persistence.prepared_log.entry import encode_ended
from holdfast.persistence.prepared_log.entry import encode_entry as encode_entry_of_log
from holdfast.queue.protocol import frames as wire
from holdfast.serializers.compression import compress
from proof.fuzz.target_directory import IS_SEALED as PATCH_SEALED
from proof.fuzz.target_files import (
    FILE_ID,
    GROUP_ID,
    HAS_MARK,
    HAS_OWN_HEADER,
    IS_BORN_SEALED,
    IS_SEALED,
    QUEUE_ID,
    SALT,
    data_header,
)
from proof.fuzz.targets import CORPUS

NOW_NS = 1_700_000_000 * 10**9
TAKE = 0xC0FFEE01_00000007
NONCE = bytes(range(64, 80))

ACKNOWLEDGED = (Acknowledged("g", GROUP_ID, ((100, 2, 7, 4700), (105, 1, 7, 4900))),)
DECISIONS = {
    "small": CommitRecord("t", NONCE, 2, NOW_NS),
    "full": CommitRecord(
        "t",
        NONCE,
        2,
        NOW_NS,
        first_offset=100,
        acknowledged=ACKNOWLEDGED,
        participants=(Participant("../other", QUEUE_ID, "g"), Participant(".", QUEUE_ID)),
        coordinator=Participant("../first", QUEUE_ID),
        waiting_file="prepared/t.batch",
    ),
    "part": CommitRecord("t", NONCE, 0, NOW_NS, part_of=PartOf("app", 3)),
}
OPTIONS = MessageOptions(NOW_NS, 9, NOW_NS + 1, "id", "key").encode()
HEADERS = encode_headers({"k": "v", "größe": ""})


def frame(
    payload: bytes, index: int, mark: int, kind: int = 1, flags: int = FLAGS_SINGLE, headers: bytes = b""
) -> bytes:
    """Return one frame."""
    return b"".join(
        encode_frame(
            SALT, payload, index=index, durable_mark=mark, timestamp_ns=NOW_NS, kind=kind, flags=flags, headers=headers
        )
    )


def batch(commit_record: bytes | None = None, mark: int = 0, index: int = 0) -> bytes:
    """Return a batch of two messages, with a decision or without."""
    headers = {1: HEADERS}
    payloads = [b"\x02one", b""]
    parts = encode_batch(
        SALT,
        payloads,
        index=index,
        durable_mark=mark,
        timestamp_ns=NOW_NS,
        headers=headers,
        commit_record=commit_record,
    )
    return b"".join(parts)


def frame_seeds() -> dict[str, bytes]:
    """Frames from position 0."""
    seal = Seal(2, NOW_NS, NOW_NS, ((0, 0),)).encode()
    decided = DECISIONS["full"].encode()
    everything = (
        frame(b"x", 0, 0) + batch(index=1) + frame(decided, 3, 0, KIND_COMMIT_RECORD) + frame(seal, 3, 0, KIND_SEAL)
    )
    return {
        "one": b"\1" + frame(b"payload", 0, 0),
        "options": b"\1" + frame(b"", 0, 0, headers=OPTIONS + HEADERS, flags=7),
        "everything": b"\0" + everything,
        "everything-sealed": b"\1" + everything,
        "damaged-middle": b"\0" + frame(b"a", 0, 0) + b"\x02\x20garbage" + frame(b"b", 1, 0) + frame(b"c", 2, 0),
        "copied-frame": b"\0" + frame(b"a", 0, 0) + b"?" + frame(frame(b"a", 0, 0), 1, 0),
        "size-of-4-gib": b"\0\x02\xff\xff\xff\xff" + bytes(40),
    }


def header_seeds() -> dict[str, bytes]:
    """Headers and decisions without a frame."""
    seeds = {f"decision-{name}": b"\1" + commit_record.encode() for name, commit_record in DECISIONS.items()}
    return {
        **seeds,
        "options": b"\0" + OPTIONS,
        "options-and-headers": b"\0" + OPTIONS + HEADERS,
        "headers": b"\0" + HEADERS,
        "unknown": b"\0" + bytes((7, 0x80, 1, 0, 0)) + bytes((9, 0, 0, 0)),
    }


def data_file_seeds() -> dict[str, bytes]:
    """Frames of a last data file, with marks and headers before them."""
    decided = DECISIONS["full"].encode()
    start = FRAMES_START
    body = frame(b"x", 0, start) + batch(decided, start, 1)
    closed = frame(b"", 3, start + len(body), KIND_MARK, FLAGS_SINGLE | FLAG_CLEAN_CLOSE)
    end = start + len(body)
    mark = bytes.fromhex("8948464d41524b0a02000100") + QUEUE_ID + FILE_ID
    mark += (7).to_bytes(8, "little") + (100).to_bytes(8, "little")
    mark += b"".join(number.to_bytes(4, "little") for number in (end, 3, end, 3, start)) + NOW_NS.to_bytes(8, "little")
    seal = frame(Seal(3, NOW_NS, NOW_NS, ((0, start),)).encode(), 3, 0, KIND_SEAL)
    holes = bytearray(body)
    holes[40:60] = bytes(20)
    own = data_header().encode()
    return {
        "closed": bytes((IS_SEALED,)) + body + closed,
        "killed": bytes((IS_SEALED,)) + body,
        "marked": bytes((IS_SEALED | HAS_MARK,)) + mark + body,
        "marked-and-torn": bytes((HAS_MARK,)) + mark + body[:-9] + bytes(50),
        "holes": b"\0" + bytes(holes) + closed,
        "born-sealed": bytes((IS_SEALED | IS_BORN_SEALED,)) + batch(decided) + seal,
        "own-header": bytes((IS_SEALED | HAS_OWN_HEADER,)) + own + body + closed,
    }


def batch_file_seeds() -> dict[str, bytes]:
    """Prepared batches."""
    decided = DECISIONS["small"].encode()
    seal = frame(Seal(2, NOW_NS, NOW_NS, ((0, FRAMES_START),)).encode(), 2, 0, KIND_SEAL)
    carried = frame(DECISIONS["full"].encode(), 2, 0, KIND_COMMIT_RECORD)
    alone = frame(DECISIONS["part"].encode(), 0, 0, KIND_COMMIT_RECORD)
    return {
        "whole": bytes((IS_SEALED,)) + batch(decided) + seal,
        "not-sealed": bytes((IS_SEALED,)) + batch(decided),
        "carried": bytes((IS_SEALED,)) + batch(decided) + carried + seal,
        "no-messages": bytes((IS_SEALED,)) + alone + frame(Seal(0, 0, 0, ()).encode(), 0, 0, KIND_SEAL),
        "damaged": b"\0" + batch(decided)[:-3] + b"???" + seal,
    }


def segment_seeds() -> dict[str, bytes]:
    """Segments of the prepared log: entries that wait or have ended, whole or not."""

    def prepared(name: str, mark: int = 0, headers: bytes = b"") -> bytes:
        record = CommitRecord(name, name.encode() * 16, 2, NOW_NS, waiting_file="prepared/0000000001.log")
        buffers, _ = encode_entry_of_log(SALT, mark, (b"one", b"two"), {1: headers} if headers else {}, record)
        return b"".join(buffers)

    a, b, c = prepared("a"), prepared("b", headers=HEADERS), prepared("c", FRAMES_START + 200)
    ended = b"".join(encode_ended(SALT, 0, NOW_NS, b"a" * 16, COMMITTED))
    sealed, synced = bytes((IS_SEALED,)), bytes((HAS_MARK,)) + (FRAMES_START + len(a)).to_bytes(2, "little")
    return {
        "waiting": sealed + a + b,
        "ended": sealed + a + ended + b + bytes(64),
        "alone": sealed + ended,
        "torn": bytes(1) + a + b[:-20],
        "damaged": bytes(1) + a[:60] + b"?" + a[61:] + c,
        "without-its-first-frame": bytes(1) + bytes(40) + a[40:] + b + c,
        "synced": synced + a[:-1] + b"?" + b,
        "another-header": bytes((HAS_OWN_HEADER,)) + bytes(600) + a,
    }


def entries(changes: list[Change], number: int = 0, *, is_checkpoint: bool = False) -> bytes:
    """Return one run of position entries."""
    count = len(changes)
    return b"".join(
        encode_entry(SALT, change, number + at, run_flags(at, count, is_checkpoint=is_checkpoint), NOW_NS, number, 3)
        for at, change in enumerate(changes)
    )


def position_seeds() -> dict[str, bytes]:
    """Progress: what each kind of entry says."""
    floor = Change(ENTRY_FLOOR, 100, 1, (7, 4608))
    vote = Vote("t", NONCE, NOW_NS, None, ((103, 2, 7, 4800), (110, 70, 7, 5000)))
    runs = [Change(ENTRY_DONE, 102, 3, (7, 4700)), Change(ENTRY_DELIVERED, 105, 4, (0, 0), 2)]
    start = entries([floor, *runs, floor], is_checkpoint=True)
    away = Change(ENTRY_TAKEN_AWAY, 105, 2, NO_HINT, 0, TAKE)
    numbered = entries([floor, *runs, away, floor], is_checkpoint=True)
    dead = dead_change(107, DeadMark("rejected", 2, NOW_NS, NOW_NS + 1))
    taken = [Change(ENTRY_DELIVERED, 108, 1, (0, 0), 3, TAKE), returned_change(108, 3, NOW_NS, 5, 1, TAKE)]
    later = [Change(ENTRY_LOST, 109, 1, (7, 4900)), returned_change(106, 2, NOW_NS, 5, 2), dead]
    voted = entries(vote_changes(vote), 4)
    settled = 4 + len(voted) // 64
    far = {
        f"far-{kind}-{count.bit_length() - 1}": bytes((IS_SEALED,))
        + start
        + entries([Change(kind, 100, count, NO_HINT, 1)], 4)
        for kind in (ENTRY_FLOOR, ENTRY_DONE, ENTRY_DELIVERED, ENTRY_LOST, ENTRY_RETURNED)
        for count in (2**20, 2**27, 2**28, 2**40, 2**62)
    }
    far["far-floor"] = bytes((IS_SEALED,)) + start + entries([Change(ENTRY_FLOOR, 2**40, 0, NO_HINT)], 4)
    far["far-dead"] = bytes((IS_SEALED,)) + start + entries([Change(ENTRY_DEAD, 2**40, 1, (1, 1))], 4)
    for count in (2**20, 2**27, 2**40):
        held = Vote("t", NONCE, NOW_NS, None, ((103, count, 7, 4800),))
        far[f"far-held-{count.bit_length() - 1}"] = bytes((IS_SEALED,)) + start + entries(vote_changes(held), 4)
    damaged = bytearray(start + entries([runs[0]], 4) + entries([later[0]], 5))
    damaged[70] ^= 1
    return {
        "checkpoint": bytes((IS_SEALED,)) + start,
        "later": bytes((IS_SEALED,)) + start + b"".join(entries([each], 4 + at) for at, each in enumerate(later)),
        "numbered": bytes((IS_SEALED,)) + numbered + entries(taken[:1], 5) + entries(taken[1:], 6),
        "vote": bytes((IS_SEALED,)) + start + voted,
        "settled": bytes((IS_SEALED,)) + start + voted + entries(outcome_changes(vote, committed=True), settled),
        "damaged": b"\0" + bytes(damaged) + bytes(64),
        "half-a-run": bytes((IS_SEALED,)) + start + entries([*later, runs[0]], 4)[:-64],
        **far,
    }


def document_seeds() -> dict[str, bytes]:
    """One of each reader, by its place in ``READERS``; the checksum is put right."""
    decided = OutcomeEntry(1, "t", NONCE, COMMITTED, range(100, 102), NOW_NS).encode()
    texts: dict[str, bytes] = {
        "queue": json.dumps({"format": FORMAT_VERSION, "queue_id": QUEUE_ID.hex(), "created": "now"}).encode(),
        "group": json.dumps(
            {"format": FORMAT_VERSION, "group_id": GROUP_ID.hex(), "start_offset": 5, "retired": [[10, 20]]}
        ).encode(),
        "pause": json.dumps({"format": FORMAT_VERSION, "until_ns": None, "reason": "why"}).encode(),
        "joint": json.dumps(
            {
                "format": FORMAT_VERSION,
                "applications": {"a": {"version": 3, "at": NOW_NS, "parts": [["t", NONCE.hex()]]}},
            }
        ).encode(),
        "note": json.dumps({"detail": "no use", "exception": "", "traceback": ""}).encode(),
        "decided": bytes(160) + decided,
        "dedup": bytes(4 + 4) + NONCE + bytes(24),
        "mark": bytes.fromhex("8948464d41524b0a02000100") + QUEUE_ID + FILE_ID + bytes(44),
    }
    return {name: bytes((number * 2 + 1,)) + text for number, (name, text) in enumerate(texts.items())}


def body_seeds() -> dict[str, bytes]:
    """A payload of each kind, and compressed ones."""
    texts = (
        b'{"id":1,"customer":"Z"}',
        b'[1,2.5,null,"x",{"a":[]}]',
        b'{"name":"Z","born":"2020-01-01T00:00:00Z","home":[1,2]}',
        b'{"a":{"to":"x","stamps":2}}',
        bytes.fromhex("82a2696401a8637573746f6d6572a15a"),
        bytes.fromhex("93 01 c4 02 ff 00 d6 ff 5f 00 00 00"),
        bytes.fromhex("81a46e616d65a15a"),
        bytes.fromhex("91 81 a2 69 64 01"),
        bytes.fromhex("0801 1201 5a"),
        b"raw \xff",
    )
    seeds = {f"kind-{number}": bytes((number * 4,)) + text for number, text in enumerate(texts)}
    seeds["compressed"] = bytes((1,)) + compress(texts[0])
    seeds["compressed-here"] = bytes((3,)) + texts[0]
    seeds["bomb-of-300-mb"] = bytes((9 * 4 + 1,)) + compress(bytes(300 * 2**20))
    seeds["bomb-within-bounds"] = bytes((1,)) + compress(b" " * (4 * 2**20))
    return seeds


def named_body_seeds() -> dict[str, bytes]:
    """Payloads with headers of the sender's choice."""
    return {
        "plain": b"application/json\n\n1\n\0" + b'{"id":1}',
        "schema": b"application/vnd.msgpack\nOrder\n2\nzstd\0" + bytes.fromhex("81a2696401"),
        "pickle": b"application/x-python-pickle\n\n\n\0" + b"cos\nsystem\n",
        "stranger": b"text/html; charset=x\nOther\n-1\ngzip\0<",
    }


def wire_seeds() -> dict[str, bytes]:
    """Frames between processes, whole and damaged; behind the size of the pieces."""
    one = b"".join(wire.encode_frame(wire.REQUEST, 1, b"\x80", [b"one", b"", b"three"]))
    none = b"".join(wire.encode_frame(wire.NOTICE, 2**64 - 1, b""))
    huge = {
        f"huge-{name}": b"\0" + one[:at] + b"\xff\xff\xff\xff" + one[at + 4 :]
        for name, at in (("frame", 0), ("count", 8), ("body", 20), ("payload", 24))
    }
    return {
        "one": b"\0" + one,
        "righted": b"\1" + one,
        "three-by-byte": b"\2" + one + none + one,
        "half": b"\x10" + one + one[:30],
        "text": b"\0GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        **huge,
    }


def directory_seeds() -> dict[str, bytes]:
    """One patch each, some with the checksums put right: first a file's number, then how, position, size, zero."""
    seeds = {}
    for number in range(30):
        for how, name in ((0, "flip"), (PATCH_SEALED, "sealed"), (2, "cut")):
            seeds[f"file-{number:02}-{name}"] = bytes((number, how, 40 + number, 0, 2, 0)) + b"\x03\x01"
    return {name: seed for number, (name, seed) in enumerate(seeds.items()) if number % 4 == 0}


def twin_seeds() -> dict[str, bytes]:
    """Frames and entries behind four bytes: what is resealed, an index, a start, a count."""
    messages = frame(b"a", 0, 0, flags=0) + frame(b"b", 1, 0, flags=0, headers=HEADERS) + frame(b"", 2, 0)
    return {
        "messages": bytes((1, 0, 0, 7)) + messages,
        "some-messages": bytes((1, 1, 1, 1)) + b"?" + messages[33:],
        "others": bytes((1, 0, 0, 7)) + frame(b"m", 0, 0, KIND_SEAL) + messages,
        "gaps": bytes((1, 0, 0, 6)) + frame(b"a", 1, 0) + frame(b"b", 4, 0) + frame(b"s", 6, 0, KIND_SEAL),
        "as-they-are": bytes((0, 0, 0, 7)) + messages,
        "cut-off": bytes((13, 0, 0, 7)) + messages[:-3],
        "entries": bytes((2, 0, 0, 0)) + entries([Change(ENTRY_DONE, 102, 3, (7, 4700))]),
        "long": bytes((0, 5, 0, 2)) + bytes(range(256)) * 3,
    }


SEEDS = {
    "twins": twin_seeds,
    "frames": frame_seeds,
    "headers": header_seeds,
    "data-file": data_file_seeds,
    "batch-file": batch_file_seeds,
    "segment": segment_seeds,
    "positions": position_seeds,
    "documents": document_seeds,
    "bodies": body_seeds,
    "named-bodies": named_body_seeds,
    "wire": wire_seeds,
    "directory": directory_seeds,
}


def main() -> None:
    """Write all of them."""
    for target, make in SEEDS.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, content in make().items():
            (CORPUS / target / name).write_bytes(content)


if __name__ == "__main__":
    main()
