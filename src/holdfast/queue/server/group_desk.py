"""Serves requests to the owner of a group's read side, one round at a time. docs/format.md, "Requests".

A request is taken by a rename, so that it cannot be taken back any more. Then it is done, answered and removed. The
next owner after a crash in between finds it taken: if it was answered it is removed, else it is done, perhaps again. A
request of a dead client is removed, and not done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.persistence.exchange.mailbox import ANSWERS, TEXT_BYTES_MAX, Answer, Answers
from holdfast.persistence.exchange.requests import ASK, TAKEN, RequestName, is_alive, list_requests, move, read_verb
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.constants import ANSWER_DONE, ANSWER_ERROR
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.protocol.error_text import as_text
from holdfast.queue.server.request_desk import REFUSALS
from holdfast.queue.verbs.group_verbs import Fields, perform_logged
from holdfast.queue.verbs.verb_log import holder_of
from holdfast.queue.verbs.vote_verbs import VOTE_VERBS, VoteControls, perform_on_votes

logger = logging.getLogger("holdfast")


class GroupDesk:
    """Serves requests for the owner of the read side of a group; for one thread at a time.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with its read side.
    votes : VoteControls
        The votes that the group holds.
    """

    def __init__(self, handle: QueueHandle, votes: VoteControls) -> None:
        self._storage = handle.storage
        self._directory = handle.directory
        self._path = handle.path
        self._group = handle.options.group
        self._read_side = handle.require_read_side()
        self._votes = votes
        self._answers = Answers(handle.storage, handle.directory.requests)
        self._stuck: set[RequestName] = set()

    def find(self, names: Sequence[str]) -> list[RequestName]:
        """Return those of the names in ``requests/`` that wait for the owner of this group's read side."""
        requests = [name for each in names if (name := RequestName.parse(each)) is not None]
        found = [name for name in requests if name.kind in (ASK, TAKEN) and name.group == self._group]
        return [name for name in found if name not in self._stuck]

    def serve(self, names: Sequence[str] | None = None) -> bool:
        """Serve what waits now; return whether there was anything. Raises StorageError if the directory cannot be read.

        ``names`` are those in ``requests/``, just listed.
        """
        if names is None:
            with storage_errors("serving requests", self._directory.requests):
                names = list_requests(self._storage, self._directory.requests)
        self._stuck.intersection_update(map(RequestName.parse, names))
        found = self.find(names)
        failed_count = 0
        for name in found:
            try:
                self._handle(name)
            except OSError as error:  # the others are not held up
                failed_count += 1
                logger.error("request %s of %s waits: %s", name, self._path, error)
        self._answers.keep({each.removesuffix(ANSWERS) for each in names if each.endswith(ANSWERS)})
        return len(found) > failed_count

    def _handle(self, name: RequestName) -> None:
        asked, taken = name.as_kind(ASK).path(self._directory), name.as_kind(TAKEN).path(self._directory)
        if name.kind == ASK and not move(self._storage, asked, taken):
            return  # withdrawn
        try:
            if not self._is_over(name):
                self._answers.write(name.mailbox, self._do(name.as_kind(TAKEN)))
        except BaseException:  # interrupted: given back, so that its client can remove it, or an owner do it again
            move(self._storage, taken, asked)
            raise
        self._remove(name.as_kind(TAKEN))

    def _is_over(self, name: RequestName) -> bool:
        """Whether no client waits for it any more: it has died, or has the answer of an earlier owner."""
        if not is_alive(self._storage, self._directory.requests, name.mailbox):
            return True
        return self._answers.is_answered(name.mailbox, name.number)

    def _do(self, name: RequestName) -> Answer:
        path = name.path(self._directory)
        try:
            with storage_errors("reading a request", path):
                fields = read_verb(self._storage, path)
            text = json.dumps(self._perform(name, fields), ensure_ascii=False)
            if len(text.encode()) <= TEXT_BYTES_MAX:
                return Answer(name.number, ANSWER_DONE, text=text)
            error: Exception = HoldfastError(f"{fields['verb']} is done, but what it returns does not fit an answer")
        except REFUSALS as refusal:
            error = refusal
        except Exception as fault:  # a bug: the client shall not wait for it in vain
            logger.exception("request %s of %s fails", name, self._path)
            error = HoldfastError(f"the owner of the group failed, and logged why: {fault!r}")
        return Answer(name.number, ANSWER_ERROR, text=as_text(error))

    def _perform(self, name: RequestName, fields: Fields) -> Fields:
        if fields.get("verb") in VOTE_VERBS:
            return perform_on_votes(self._votes, fields)
        asker = holder_of(self._storage, self._directory.requests, name.mailbox)
        return perform_logged(self._read_side, self._path, self._group, fields, asker)

    def _remove(self, name: RequestName) -> None:
        path = name.path(self._directory)
        try:
            self._storage.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:  # it is answered: the next owner only has to remove it
            self._stuck.add(name)
            logger.warning("%s cannot be removed: %s", path, error)

    def close(self) -> None:
        """Close the mailboxes; waiting requests keep waiting for the next owner."""
        self._answers.close()
