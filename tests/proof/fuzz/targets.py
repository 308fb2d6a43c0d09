"""What is fuzzed, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.serializers.compression import DECOMPRESSED_BYTES_MAX
from proof.fuzz.target_bodies import body, named_body
from proof.fuzz.target_directory import directory
from proof.fuzz.target_documents import document
from proof.fuzz.target_files import batch_file, data_file, position_entries, segment
from proof.fuzz.target_frames import frames, message_headers
from proof.fuzz.target_twins import compare
from proof.fuzz.target_wire import wire

CORPUS = Path(__file__).resolve().parent / "corpus"
DATA_FILE_BYTES = 64 * 2**20
"""A data file, unless an application says otherwise. Nothing may take twice as much memory, whatever its bytes say."""


BODIES_MEMORY_BYTES = 4 * DECOMPRESSED_BYTES_MAX
"""What a payload decompresses to, and the objects in it: bounded by what may come out, not by what stands there."""


@dataclass(frozen=True)
class Target:
    """One function that takes any bytes.

    Attributes
    ----------
    name : str
        Also of its directory in the corpus.
    run : callable
        Raises where something is wrong with what is tested: an AssertionError, or whatever came out of it.
    share : int
        Its part of the executions of ``all``, among decoders; 0: it has a count of its own.
    size_max : int, bytes
        Of an input.
    memory_bytes : int
        What it may take beyond what it begins with.
    package : str
        By whose branches a fuzzer finds its way.
    """

    name: str
    run: Callable[[bytes], None]
    share: int
    size_max: int = 4096
    memory_bytes: int = 2 * DATA_FILE_BYTES
    package: str = "holdfast.persistence"

    @property
    def corpus(self) -> Path:
        """Its seeds, and everything that ever broke it."""
        return CORPUS / self.name


TARGETS = {
    target.name: target
    for target in (
        Target("positions", position_entries, 15),  # first: of the decoders it takes by far the longest
        Target("frames", frames, 20, 1024),
        Target("headers", message_headers, 20, 512),
        Target("data-file", data_file, 15),
        Target("batch-file", batch_file, 15),
        Target("segment", segment, 15),
        Target("documents", document, 20, 1024),
        Target("bodies", body, 20, 512, BODIES_MEMORY_BYTES, "holdfast.serializers"),
        Target("named-bodies", named_body, 5, 256, BODIES_MEMORY_BYTES, "holdfast.serializers"),
        Target("wire", wire, 20, 512, package="holdfast.queue.protocol"),
        Target("twins", compare, 0, 1024),
        Target("directory", directory, 0, 256),
    )
}
DECODERS = [target for target in TARGETS.values() if target.share]
