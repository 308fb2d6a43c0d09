"""Bugs between a range server and the tasks that it serves, or that send it their rows."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

FAR_AWAY = (
    Mutation(
        "header-before-bytes",
        "The header, which proves from which life of a file its bytes come, is read before them.",
        "spark/serving/server.py",
        "                    data = file.read_at(CHUNK_BYTES if is_endless else min(left, CHUNK_BYTES), position)\n"
        "                    yield _chunk(data, file.read_at(FRAMES_START, 0))  #",
        "                    header = file.read_at(FRAMES_START, 0)\n"
        "                    data = file.read_at(CHUNK_BYTES if is_endless else min(left, CHUNK_BYTES), position)\n"
        "                    yield _chunk(data, header)  #",
        "range server",
    ),
    Mutation(
        "header-of-the-opening",
        "A task compares the header that the file had when it was opened, after each read.",
        "spark/remote/files.py",
        "        self._rest, self._header = chunk\n",
        "        self._rest, _ = chunk\n",
        "range server",
    ),
    Mutation(
        "any-token",
        "A request with a wrong token gets what the first plan may ask for.",
        "spark/serving/grants.py",
        "            known = self._known.get(_digest(token))\n            if known is None:",
        "            known = next(iter(self._known.values()), None)\n            if known is None:",
        "range server",
    ),
    Mutation(
        "another-queue-there",
        "The server does not look whether the planned queue is still there: files of another one are called consumed.",
        "spark/serving/server.py",
        "        require_queue_here(self._storage, grant.root, grant.queue_id)\n        with",
        "        with",
        "range server",
    ),
    Mutation(
        "ends-while-it-is-asked",
        "A server that sends one large file for longer than a minute ends in the middle of it.",
        "spark/serving/grants.py",
        "            if self._under_way or any(",
        "            if any(",
        "range server",
    ),
    Mutation(
        "end-of-stream-is-enough",
        "A stream of messages that just ends is staged as a whole: that of a task which was killed, too.",
        "spark/serving/parts.py",
        "    if told != count:",
        "    if told not in (count, -1):",
        "unseen writes",
    ),
    Mutation(
        "parts-without-their-task",
        "What a task had staged before it failed stays staged.",
        "spark/writing/staging.py",
        "        except BaseException:\n            staging.give_up()\n            raise",
        "        except BaseException:\n            raise",
        "unseen writes",
    ),
    Mutation(
        "one-token-for-all-writes",
        "The writes of a process have one token, so the first commit ends what the tasks of the others may ask for.",
        "spark/writing/sink.py",
        "write_id=uuid.uuid4().hex",
        'write_id="write"',
        "unseen writes",
    ),
    Mutation(
        "write-ends-with-its-planner",
        "The server ends a minute after a request, though a stage of the write may begin later.",
        "spark/serving/grants.py",
        "known.is_kept = known.is_kept and bool(known.grant.write_id)",
        "known.is_kept = False",
        "unseen writes",
    ),
    Mutation(
        "read-token-writes",
        "Each token is good for everything: a plan that reads may write.",
        "spark/serving/server.py",
        "    if is_write is not None and is_write != bool(grant.write_id):",
        "    if is_write is False and grant.write_id:",
        "unseen writes",
    ),
    Mutation(
        "older-copy-is-written",
        "A task stages its rows in an older copy of the queue, which its machine has.",
        "spark/writing/sink.py",
        "LocalParts(self._options.path, self._queue_id, log_end=self._log_end)",
        "LocalParts(self._options.path, self._queue_id)",
        "unseen writes",
    ),
    Mutation(
        "files-of-another-user",
        "A task of another user makes files that the owner of the queue cannot read.",
        "spark/writing/staging.py",
        "            check_root(storage, root, writable=True)  # the owner could not read another user's files\n",
        "",
        "unseen writes",
    ),
    Mutation(
        "delays-on-the-clock-of-the-task",
        "A delay counts on the clock of the machine that runs the task, which may be an hour off.",
        "spark/remote/parts.py",
        "        self._ahead_ns = now_ns - time.time_ns()",
        "        self._ahead_ns = 0",
        "unseen writes",
    ),
)
