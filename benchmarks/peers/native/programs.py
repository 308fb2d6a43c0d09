"""The queues of other languages."""

from __future__ import annotations

from benchmarks.peers.native.program import Program

PROGRAMS = (
    Program(
        "queue-file, in Rust",
        "queue_file",
        "cargo",
        "Rust",
        ("build", "--release", "--quiet", "--target-dir", "TARGET"),
        "release/queue-file-peer",
        ("Cargo.toml", r'queue-file = "=(.+)"'),
        "set_sync_writes(true)",
    ),
    Program(
        "raft-wal, in Go",
        "raft_wal",
        "go",
        "Go",
        ("build", "-buildvcs=false", "-o", "TARGET/raft-wal-peer", "."),
        "raft-wal-peer",
        ("go.mod", r"/raft-wal v(\S+)"),
        "always",
    ),
)
