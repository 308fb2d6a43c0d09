"""Files of an earlier format version: every way in says what to do with them, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import PersistentQueue, QueueService, UnsupportedVersionError, verify
from holdfast.cli.main import holdfast
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FORMAT_VERSION,
    HEADER_BLOCK_BYTES,
    HEADER_COPY_POSITIONS,
    HEADER_CRC,
    WRITE_MARK,
)
from support.golden.golden_queue import MESSAGE_COUNT

HERE = Path(__file__).parent
OLD = sorted(path.name for path in HERE.glob("*v1"))
MODES = ("exclusive", "shared", "read_only")
EARLIER = FORMAT_VERSION - 1

Tree = dict[str, tuple[int, int, bytes]]


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A queue of an earlier version, in the directory of a service."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "service" / "queue"))


@pytest.fixture
def present(tmp_path: Path) -> Path:
    """A queue of the present version."""
    return Path(shutil.copytree(HERE / f"v{FORMAT_VERSION}", tmp_path / "service" / "queue"))


def tree(root: Path) -> Tree:
    """Return all that stands below a directory: modes, times of the last change, and contents."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (root, *sorted(root.rglob("*")))
    }


def files_in(root: Path) -> Tree:
    """Return all of a queue but what owners and sessions leave, whose directory is made before a file is looked at."""
    return {path: each for path, each in tree(root).items() if path != "." and Path(path).parts[0] != ".owner"}


def use(root: Path, mode: str) -> None:
    """Open a queue, and read what is next where nothing is said before that."""
    with PersistentQueue(root, mode=mode) as queue:
        queue.peek(1000)


WAYS: dict[str, Callable[[Path], object]] = {
    **{mode: lambda root, mode=mode: use(root, mode) for mode in MODES},
    "verify": verify,
    "service": lambda root: QueueService(root.parent).queue(root.name),
}


def test_there_are_queues_of_an_earlier_version() -> None:
    """They are kept, to be refused."""
    assert OLD == ["joint-v1", "v1"]


@pytest.mark.parametrize("way", [*MODES, "verify", "service"])
def test_an_older_queue_is_refused_and_left_as_it_is(old: Path, way: str) -> None:
    """The error says which version it has, and what to do; no file and no directory is made, changed or removed."""
    before = tree(old)
    with pytest.raises(UnsupportedVersionError, match="drain the queue with the Holdfast that wrote it") as caught:
        WAYS[way](old)
    assert caught.value.version == EARLIER
    assert caught.value.path == str(old / "queue.json")
    assert tree(old) == before


@pytest.mark.parametrize("command", [["verify"], ["stats"], ["peek"], ["get"], ["put", "x"], ["prepared"]])
def test_the_command_refuses_an_older_queue(old: Path, command: list[str]) -> None:
    """One line for people, and an exit code that is not 0."""
    before = tree(old)
    done = CliRunner().invoke(holdfast, [command[0], str(old), *command[1:]])
    assert done.exit_code == 1, done.output
    assert done.output.count("has format version 1") == 1
    assert tree(old) == before


@pytest.mark.parametrize("way", [*MODES, "verify"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"not JSON"])
def test_an_older_queue_with_a_damaged_identity_is_not_repaired(old: Path, way: str, damage: bytes) -> None:
    """Its data files say of which version it is, even where one copy of their header is damaged too."""
    (old / "queue.json").write_bytes(damage)
    for path in (old / "data").iterdir():
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    before = tree(old)
    with pytest.raises(UnsupportedVersionError, match="drain the queue"):
        WAYS[way](old)
    assert tree(old) == before


# -- One older file in a queue of the present version ----------------------------------------------------------------


def age_blocks(path: Path) -> None:
    """Give both copies of a header block the earlier version, with the right checksum."""
    content = bytearray(path.read_bytes())
    for at in HEADER_COPY_POSITIONS:
        content[at + 8 : at + 10] = EARLIER.to_bytes(2, "little")
        end = at + HEADER_BLOCK_BYTES - HEADER_CRC.size
        HEADER_CRC.pack_into(content, end, crc32c(0, bytes(content[at:end])))
    path.write_bytes(content)


def age_mark(path: Path) -> None:
    """Give ``write.mark`` the earlier version, with the right checksum."""
    content = bytearray(path.read_bytes())
    content[8:10] = EARLIER.to_bytes(2, "little")
    HEADER_CRC.pack_into(content, WRITE_MARK.size, crc32c(0, bytes(content[: WRITE_MARK.size])))
    path.write_bytes(content)


def age_document(path: Path) -> None:
    """Give a document the earlier version, with the right checksum."""
    fields = json.loads(path.read_text()) | {"format": EARLIER}
    del fields["crc32c"]
    checksum = crc32c(0, json.dumps(fields, sort_keys=True).encode())
    path.write_text(json.dumps({**fields, "crc32c": f"{checksum:08x}"}))


AGED: dict[str, Callable[[Path], None]] = {
    "queue.json": age_document,
    "write.mark": age_mark,
    "data/0000000003-00000000000000000067.data": age_blocks,
    "groups/default/group.json": age_document,
    "groups/default/0000000001.position": age_blocks,
    "groups/paused/0000000001.position": age_blocks,
}


@pytest.mark.parametrize("name", AGED)
@pytest.mark.parametrize("way", [mode for mode in MODES if mode != "read_only"])
def test_one_older_file_is_enough_to_refuse_a_queue_for_writing(present: Path, name: str, way: str) -> None:
    """It is not taken for a damaged one, which recovery would give up, write anew or start over without."""
    AGED[name](present / name)
    before = files_in(present)
    with pytest.raises(UnsupportedVersionError, match="format version 1") as caught:
        WAYS[way](present)
    assert caught.value.path == str(present / name)
    assert files_in(present) == before


@pytest.mark.parametrize("name", [name for name in AGED if "paused" not in name])
@pytest.mark.parametrize("way", ["read_only", "verify"])
def test_one_older_file_is_no_damage_for_those_who_read(present: Path, name: str, way: str) -> None:
    """It is refused, not reported as lost."""
    AGED[name](present / name)
    before = tree(present)
    with pytest.raises(UnsupportedVersionError, match="format version 1"):
        WAYS[way](present)
    assert tree(present) == before


def test_an_older_file_in_the_middle_of_the_log_is_not_given_up(present: Path) -> None:
    """Whoever comes to it is told; its messages are not lost, and no later message goes before them."""
    age_blocks(present / "data/0000000002-00000000000000000034.data")
    with PersistentQueue(present, mode="exclusive", group="audit") as queue, pytest.raises(UnsupportedVersionError):
        queue.get_many(MESSAGE_COUNT, timeout=0)
    with pytest.raises(UnsupportedVersionError):
        verify(present)


@pytest.mark.parametrize("damage", ["header", "gone"])
def test_damage_is_still_no_reason_to_refuse(present: Path, damage: str) -> None:
    """A last data file without a good header, a position file and a write.mark that are gone: recovery's business."""
    data = present / "data/0000000003-00000000000000000067.data"
    position = present / "groups/default/0000000001.position"
    if damage == "header":
        for path in (data, position):
            content = path.read_bytes()
            path.write_bytes(bytes(4608) + content[4608:])
    else:
        position.unlink()
        (present / "write.mark").unlink()
    with PersistentQueue(present, mode="exclusive") as queue:
        assert queue.put(b"goes on") >= 67
