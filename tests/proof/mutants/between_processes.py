"""Bugs in what processes say to each other: sizes that are believed, answers that are mixed up, clients forgotten."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

BETWEEN_PROCESSES = (
    Mutation(
        "length-trusted",
        "A frame may say that it has 4 GiB; the other end waits, and keeps all that comes in memory.",
        "queue/protocol/frames.py",
        "    if not HEADER.size <= size <= FRAME_BYTES_MAX:\n",
        "    if size < HEADER.size:\n",
        "between processes",
    ),
    Mutation(
        "payload-behind-its-frame",
        "Lengths of payloads are not compared with the frame, so one reaches into the next frame.",
        "queue/protocol/frames.py",
        "    if at + sum(lengths) != end:\n",
        "    if at > end:\n",
        "between processes",
    ),
    Mutation(
        "late-answer-taken",
        "The answer of a request that timed out is taken for that of the next one.",
        "queue/transport/connection.py",
        "                elif frame.request_id == request_id:\n",
        "                else:\n",
        "between processes",
    ),
    Mutation(
        "interrupted-connection-used",
        "Ctrl-C while a request waits, and the next one finds its answer.",
        "queue/transport/connection.py",
        "        self._is_in_step = False\n        try:\n            self._send(",
        "        try:\n            self._send(",
        "between processes",
    ),
    Mutation(
        "client-forgotten-while-it-reads",
        "A client has read so fast that nothing wakes the loop for the requests that waited for it to read.",
        "queue/transport/server_loop.py",
        "        if connection.has_frames:  #",
        "        if connection.has_frames and connection.is_choked:  #",
        "between processes",
    ),
    Mutation(
        "unread-answers-without-end",
        "A client that never reads is kept, and so are all its answers.",
        "queue/transport/server_loop.py",
        "            if connection.deadline is None:\n                connection.deadline = now + UNREAD_SECONDS\n",
        "            if connection.deadline is None:\n                return\n",
        "between processes",
    ),
    # -- Requests that come again ------------------------------------------------------------------------------------
    Mutation(
        "request-forgotten-at-succession",
        "The next owner does not know what the one before had put for clients that live on.",
        "queue/engine/recovering.py",
        "    log.tail.commit_records.keep_sessions(living)\n",
        "    log.tail.commit_records.keep_sessions(lambda session: False)\n",
        "requests",
    ),
    Mutation(
        "request-forgotten-at-roll",
        "What was put for a client is not carried into the next data file.",
        "persistence/log/log_writer.py",
        "        for commit_record in self.pending_commit_records:\n            frame",
        "        for commit_record in (each for each in self.pending_commit_records if not each.session):\n"
        "            frame",
        "requests",
    ),
    Mutation(
        "request-done-twice",
        "A request that comes again is done again: the log is not asked.",
        "queue/producer/write_side.py",
        "            earlier = self._answered.known(commit_record)\n",
        "            earlier = None\n",
        "requests",
    ),
    Mutation(
        "answered-request-kept",
        "The next request of a thread does not end the one before: it is carried for ever.",
        "persistence/log/pending_commit_records.py",
        "        if other != nonce:\n            self._end_if_settled(other)\n",
        "",
        "requests",
    ),
    Mutation(
        "old-copy-done",
        "A copy of a request whose answer has arrived is done once more.",
        "queue/producer/answered_requests.py",
        "        if count <= self._counts[thread]:\n",
        "        if count < self._counts[thread]:\n",
        "requests",
    ),
)
