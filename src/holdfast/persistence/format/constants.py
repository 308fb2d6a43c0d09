"""The bytes on the disk: sizes, struct formats and constants of format version 2. docs/format.md describes them.

All integers are little-endian. Positions and sizes are bytes. A reader that knows only ``<STX><record size><data>``
can walk a data file from ``FRAMES_START``.
"""

from __future__ import annotations

import struct

FORMAT_VERSION = 2

NUMBER_MAX = 2**63 - 1
"""Offsets, sequences, counts and times stay below; what is larger was made by nobody, and sums of it would not fit."""

# -- Header blocks ---------------------------------------------------------------------------------------------------
# Data files and position files start with the same block, written twice. One bad bit, sector or 4 KiB page loses one
# copy at most: the second is in the next page (drives with 4 KiB sectors fail by the page).

DATA_MAGIC = b"\x89HFDATA\n"  # the high bit and the line feed catch transfers that mangle binary files, as in PNG
POSITION_MAGIC = b"\x89HFPOSN\n"
PREPARED_MAGIC = b"\x89HFPREP\n"
HEADER_BLOCK_BYTES = 512
HEADER_COPY_POSITIONS = (0, 4096)
FRAMES_START = HEADER_COPY_POSITIONS[-1] + HEADER_BLOCK_BYTES

HEADER_PREFIX = struct.Struct("<8sHHIII16s16sI")
"""magic, version, block size, compatible, read-only compatible and incompatible features, queue id, file id, salt."""

DATA_HEADER_REST = struct.Struct("<QQQQQIIQ")
"""sequence, first offset, base timestamp, previous sequence, previous accepted end, codec id, key id, messages of a
merged file."""

POSITION_HEADER_REST = struct.Struct("<16sQ")
"""group id, generation."""

PREPARED_HEADER_REST = struct.Struct("<Q")
"""sequence of a segment of the prepared log."""

HEADER_CRC = struct.Struct("<I")
"""CRC-32C of the block's bytes before it; the last four bytes of the block."""

COMPATIBLE_BORN_SEALED = 0x0001
"""Compatible feature of a data file: all of it was on the disk before it came into data/, its seal included."""

INCOMPATIBLE_MERGED = 0x0001
"""Incompatible feature of a data file: it has taken the place of others, and has not all of their messages."""

# -- Fencing ---------------------------------------------------------------------------------------------------------

FENCE = struct.Struct("<16sI")
"""Token of the opening that owns the file, CRC-32C of it; in ``write.mark`` and in position files."""
FENCE_TOKEN_BYTES = 16
FENCE_BYTES = FENCE.size
FENCE_POSITION = 512
"""A sector of its own: behind the first copy of a position file's header block; in ``write.mark`` behind the mark."""

# -- Frames ----------------------------------------------------------------------------------------------------------

STX = 0x02
FRAME_PREFIX = struct.Struct("<BII")
"""STX, record size (the bytes after this field), CRC-32C of what follows, started from salt XOR record size."""

FRAME_BODY = struct.Struct("<BHHHIIQ")
"""kind, flags, size of the headers, record count, index, durable mark, timestamp in nanoseconds."""

FRAME_HEADER = struct.Struct("<BIIBHHHIIQ")
"""Both of the above in one go."""

FRAME_SCAN = struct.Struct("<BIIB2xH2xI4xQ")
"""The same without what only recovery looks at: flags, record count and durable mark."""

FRAME_SIZE_END = 5
"""Where the record size starts to count: after STX and the size itself."""

FRAME_BODY_START = FRAME_PREFIX.size
FRAME_HEADER_BYTES = FRAME_HEADER.size
RECORD_SIZE_MIN = FRAME_HEADER_BYTES - FRAME_SIZE_END

KIND_MESSAGE = 0x01
KIND_SEAL = 0x10
KIND_MARK = 0x11
KIND_COMMIT_RECORD = 0x12
KIND_BEGIN = 0x13
"""In the prepared log: begins an entry."""
KIND_ENDED = 0x14
"""In the prepared log: an entry is void."""
KINDS = frozenset({KIND_MESSAGE, KIND_SEAL, KIND_MARK, KIND_COMMIT_RECORD, KIND_BEGIN, KIND_ENDED})
"""0x15 to 0x1F are kept."""

FLAG_FIRST = 0x0001
FLAG_LAST = 0x0002
FLAG_HEADERS = 0x0004
FLAG_CLEAN_CLOSE = 0x0008
FLAG_PENDING_COMMIT_RECORDS = 0x0010
"""On the mark of a clean close: decisions before it are still open."""
FLAGS_SINGLE = FLAG_FIRST | FLAG_LAST
"""A batch of one."""

DATA_FILE_BYTES_LIMIT = 2**32 - 1
"""Positions inside a data file are 32 bits wide."""

# -- The prepared log ------------------------------------------------------------------------------------------------

ENTRY_BEGIN = struct.Struct("<16sQ")
"""nonce, size of the whole entry in bytes; the id of the transaction follows."""

ENTRY_ENDED = struct.Struct("<16sB")
"""nonce, what became of the entry: OUTCOME_COMMITTED, OUTCOME_ABORTED or OUTCOME_MOVED."""

SYNCED_END = struct.Struct("<QI")
"""Position below which a segment is on the disk, CRC-32C of it started from the salt."""
SYNCED_END_POSITION = 1024

# -- Headers inside a frame: type-length-value -----------------------------------------------------------------------

TLV = struct.Struct("<HH")
"""number, size of the value."""

TLV_MUST_UNDERSTAND = 0x8000
"""A reader that does not know a number with this bit must not hand the message out as if it had understood it."""

TLV_USER_HEADER = 1
"""One application header: size of the name (1 byte), name, value; both UTF-8."""

TLV_NOT_BEFORE = 2 | TLV_MUST_UNDERSTAND
"""8 bytes: nanoseconds since the epoch; not to be handed out before."""
TLV_PRIORITY = 3
"""1 byte: 1 to 9, larger first; without it 0."""
TLV_EXPIRES = 4 | TLV_MUST_UNDERSTAND
"""8 bytes: nanoseconds since the epoch; not to be handed out from then on."""
TLV_DEDUP_ID = 5
"""What tells a message put twice; UTF-8."""
TLV_ORDER_KEY = 6 | TLV_MUST_UNDERSTAND
"""Messages of one key are handed out in order, one at a time; UTF-8."""

TLV_TIME = struct.Struct("<Q")
PRIORITY_MAX = 9

HEADERS_BYTES_MAX = 2**16 - 1

# -- Commit record: frame payload ---------------------------------------------------------------------------------

COMMIT_RECORD_TRAILER = struct.Struct("<I")
"""Size of the whole decision frame; stands behind its JSON, so that the frame is found from behind."""

NONCE = struct.Struct("<8sQ")
"""Random bytes of a thread, its count."""
NONCE_THREAD_BYTES = 8

SESSION_NUMBER_MAX = 2**32 - 1
"""Numbers of sessions have 4 bytes; 0 is no session."""

# -- Seal frame payload ----------------------------------------------------------------------------------------------

SEAL = struct.Struct("<IQQI")
"""message count, smallest and largest timestamp, number of index entries that follow."""

SEAL_ENTRY = struct.Struct("<II")
"""index of a message, position of its frame."""

SEAL_TRAILER = struct.Struct("<I")
"""Size of the whole seal frame; the last four bytes of a sealed file, so that the seal is found from the end."""

INDEX_STRIDE_BYTES = 64 * 2**10
"""One sparse-index entry about every 64 KiB: seeking then reads 64 KiB, and a 64 MiB file's seal stays near 8 KiB."""

# -- Position file entries -------------------------------------------------------------------------------------------

ENTRY = struct.Struct("<IBBHIIQQQQQII")
"""CRC-32C of what follows started from the salt, kind, flags, delivery count, entry number, synced mark (entries known
synced), sequence, first offset, count, timestamp, delivery number, end position in the data file, generation."""

ENTRY_BODY = struct.Struct("<BBHIIQQQQQII")
ENTRY_CRC = struct.Struct("<I")
ENTRY_GENERATION = struct.Struct("<I")
"""The last four bytes of an entry."""

ENTRY_FLOOR = 1
"""Checkpoint: everything below ``first offset`` is done; ``count`` is how many were lost to damage so far."""
ENTRY_DONE = 2
ENTRY_DELIVERED = 3
ENTRY_LOST = 4
"""As done, but given up: the bytes are damaged, and it was reported."""
ENTRY_VOTE = 5
"""Begins a vote. The three fields of ``VOTE_START`` hold its nonce and the size of its text in bytes; the end position
holds how many ENTRY_HELD it has. So its first entry says how many entries it takes."""
ENTRY_TEXT = 6
"""The next ``VOTE_TEXT_BYTES`` of a vote's text, in the same three fields."""
ENTRY_HELD = 7
"""As done, but held by the vote: neither finished nor to be handed out."""
ENTRY_OUTCOME = 8
"""What became of a vote: its nonce as in ENTRY_VOTE; ``delivery count`` is 1 for committed, 0 for aborted."""
ENTRY_RETURNED = 9
"""Given back, by a consumer or from the dead letters: ``delivery count`` is how often they were handed out that counts,
the sequence field holds from when on they may be again (ns), the end position when they failed first (s; 0: never)."""
ENTRY_DEAD = 10
"""One message became a dead letter: ``delivery count`` as in ENTRY_RETURNED, ``count`` holds when it failed first and
the sequence field when it failed last (ns), the end position one of ``DEAD_REASONS``."""
ENTRY_TAKEN_AWAY = 11
"""Checkpoint: the run was taken away from the delivery of this number, and its session has yet to hear of it."""
ENTRY_SKIPPED = 12
"""As done, but skipped: the group was too far behind. The total is in the delivery number of ENTRY_FLOOR."""
ENTRY_KINDS = frozenset(range(ENTRY_FLOOR, ENTRY_SKIPPED + 1))

ENTRY_KINDS_NUMBERED = frozenset({ENTRY_DELIVERED, ENTRY_RETURNED, ENTRY_DEAD, ENTRY_SKIPPED})
"""Those that may have a delivery number outside of a checkpoint: of ENTRY_DELIVERED the take, of the others the
delivery that was taken away. In its place ENTRY_FLOOR has how many messages were skipped so far."""

SESSION_SHIFT = 32
"""The digits of a delivery number above these 32 bits are its session, those below count the session's takes."""

DEAD_REASONS = ("", "exception", "lease_expired", "rejected", "expired", "undecodable", "max_deliveries")
"""Why a message is a dead letter; an entry holds the place in this list. New ones come at the end."""

VOTE_START = struct.Struct("<16sQ")
"""nonce, size of the text: the sequence, first offset and count fields of ENTRY_VOTE and ENTRY_OUTCOME."""

VOTE_WORDS = struct.Struct("<QQQ")
"""The same bytes as the three integers of any other entry."""

VOTE_TEXT_BYTES = VOTE_WORDS.size
"""Bytes of text in one ENTRY_TEXT, padded with zeros."""

ENTRY_FLAG_FIRST = 0x01
ENTRY_FLAG_LAST = 0x02
ENTRY_FLAG_CHECKPOINT = 0x04

# -- Decided transactions --------------------------------------------------------------------------------------------

OUTCOME_SLOT = struct.Struct("<IBBHQQ16sQQ100s4x")
"""CRC-32C of what follows, verdict, size of the id, zeros, number, timestamp, nonce, first offset, count, id."""
OUTCOMES_MAX = 1024
"""Slots of the ring: how many decided transactions are remembered. 160 KiB hold them."""
OUTCOME_ID_BYTES_MAX = 100
OUTCOME_COMMITTED = 1
OUTCOME_ABORTED = 2
OUTCOME_MOVED = 3
"""In the prepared log only: the entry waits in a batch file."""

JOINT_APPLICATIONS_MAX = 1024
"""Of how many applications the latest joint commit is remembered."""

# -- Deduplication ---------------------------------------------------------------------------------------------------

DEDUP_SLOT_BODY = struct.Struct("<4x16sQQQ")
"""Zeros, digest of the id (BLAKE2b), number, offset of the message, when it was put (ns)."""
DEDUP_SLOT = struct.Struct("<I4x16sQQQ")
"""CRC-32C of the body, started from that of the queue id; body."""
DEDUP_DIGEST_BYTES = 16
"""Among a million ids the odds that two share a digest are 1 to 10^26."""

# -- write.mark ------------------------------------------------------------------------------------------------------

WRITE_MARK = struct.Struct("<8sHH16s16sQQIIIIIQ")
"""magic, version, flags, queue id, file id, sequence, first offset of that file, written position, messages below it in
this file, synced position, messages below it in this file, position of the first open decision, latest timestamp; then
CRC-32C of all that."""
WRITE_MARK_MAGIC = b"\x89HFMARK\n"
WRITE_MARK_BYTES = WRITE_MARK.size + HEADER_CRC.size

MESSAGES_MAX = 2**32 - 1
"""Of one data file, as ``write.mark`` counts them."""

# -- Sizes of what is read as a whole --------------------------------------------------------------------------------

SMALL_DOCUMENT_BYTES_MAX = 64 * 2**10
"""``queue.json``, ``pause.json``."""

LARGE_DOCUMENT_BYTES_MAX = 16 * 2**20
"""``group.json`` and ``joint.json``, which have lists: hundreds of thousands of ranges or parts."""

NOTE_BYTES_MAX = 2**20
"""Beside a dead letter."""

NOTE_CHARACTERS_MAX = 5000
"""Of one field of such a note, and of the reason of a pause."""

POSITION_FILE_BYTES_LIMIT = 2**30
"""Sixteen million entries."""

DEDUP_SLOTS_MAX = 10_000_000
"""So many deduplication ids take 480 MB on the disk, and some GB in memory."""

assert HEADER_PREFIX.size == 60
assert DATA_HEADER_REST.size == 56
assert (
    HEADER_PREFIX.size + max(DATA_HEADER_REST.size, POSITION_HEADER_REST.size) <= HEADER_BLOCK_BYTES - HEADER_CRC.size
)
assert FRAME_PREFIX.size == 9 and FRAME_BODY.size == 23
assert FRAME_HEADER.size == FRAME_SCAN.size == FRAME_PREFIX.size + FRAME_BODY.size == 32
assert RECORD_SIZE_MIN == 27
assert ENTRY_BEGIN.size == 24 and ENTRY_ENDED.size == 17 and SYNCED_END.size == 12
assert HEADER_BLOCK_BYTES <= SYNCED_END_POSITION and SYNCED_END_POSITION + SYNCED_END.size <= HEADER_COPY_POSITIONS[1]
assert SEAL.size == 24 and SEAL_ENTRY.size == 8 and SEAL_TRAILER.size == 4
assert ENTRY.size == ENTRY_CRC.size + ENTRY_BODY.size == 64
assert VOTE_START.size == VOTE_WORDS.size == VOTE_TEXT_BYTES == 24
assert HEADER_BLOCK_BYTES % ENTRY.size == 0, "entries never straddle a sector"
assert POSITION_FILE_BYTES_LIMIT // ENTRY.size < 2**32, "slots and synced marks take 4 bytes"
assert WRITE_MARK.size == 88 and WRITE_MARK_BYTES == 92
assert WRITE_MARK_BYTES <= FENCE_POSITION >= HEADER_BLOCK_BYTES
assert FENCE_POSITION + FENCE.size <= HEADER_COPY_POSITIONS[1]
assert OUTCOME_SLOT.size == 160
assert DEDUP_SLOT.size == 48
