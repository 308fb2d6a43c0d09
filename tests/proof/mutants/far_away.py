"""Bugs between a range server and the tasks that it serves."""

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
)
