"""Reservations and joint commits of a life."""

from __future__ import annotations

from proof.crash_states.history import Part, Side, State
from proof.crash_states.lives.books import JOINT, LOG, PREPARED, PROGRESS, A, Held
from proof.crash_states.lives.transacting import Preparing
from proof.crash_states.opening import APPLICATION

PART, RESERVED = "part", "reserved"
RESERVED_MAX = 3
PARTS_MAX = 3


class Holding(Preparing):
    """Holds messages under an id, and commits several batches as one."""

    # -- Reservations ------------------------------------------------------------------------------------------------

    @property
    def reserved(self) -> str | None:
        """The id under which messages are reserved, if any are."""
        return next((key for key in self.held if key.startswith(RESERVED)), None)

    def reserve(self) -> None:
        """Hold what comes next under an id."""
        group = self._group()
        ready = group.ready(len(self.history.payloads[A]), self.now_ns)
        ready = [offset for offset in ready if offset not in self.held_offsets]
        found = self.queue.reservations.take(prefix=RESERVED, max_messages=RESERVED_MAX)
        assert found is not None, f"nothing is reserved of {ready}"
        offsets = [offset for first, count, _, _ in found.runs for offset in range(first, first + count)]
        if self.history.wishes[A]:
            assert set(offsets) <= set(ready), f"{offsets} are reserved, of {ready}"
        else:
            assert offsets == sorted(ready[:RESERVED_MAX]), f"{offsets} are reserved, not the first of {ready}"
        assert found.id not in self.finished_ids, f"{found.id} was the id of another batch"
        self.held[found.id] = Held(acks=offsets)
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        self._all_durable(A, Part.PROGRESS)
        self._reads_anew()
        self._return("reserve")

    def finish_reserved(self) -> None:
        """Finish what is reserved, perhaps in an earlier life."""
        (reservation,) = self.queue.reservations.held(RESERVED)
        offsets = self.held.pop(reservation.id).acks
        self.queue.reservations.commit(reservation)
        self.finished_ids = {*self.finished_ids, reservation.id}
        self._group().finish(offsets)
        self._group().hand_out(offsets)
        states: dict[Side, State] = {PROGRESS: self._group().state(), PREPARED: self._in_doubt()}
        self._happened(states, {A: frozenset(offsets)}, durable=True)
        self._reads_anew()
        self._return("finish_reserved")

    def give_back_reserved(self) -> None:
        """Give back what is reserved, as if it never had been taken."""
        (reservation,) = self.queue.reservations.held(RESERVED)
        del self.held[reservation.id]
        self.queue.reservations.abort(reservation)
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        self._reads_anew()
        self._return("give_back_reserved")

    # -- Joint commits -----------------------------------------------------------------------------------------------

    @property
    def parts(self) -> list[str]:
        """The ids of what waits for a joint commit."""
        return sorted(key for key, each in self.held.items() if each.is_part)

    @property
    def next_version(self) -> int:
        """The version that parts are prepared for."""
        return 0 if self.version is None else self.version + 1

    def part(self, *sizes: int) -> None:
        """Prepare a part of the next joint commit."""
        payloads = self._payloads(A, sizes)
        transaction_id = next(name for number in range(9) if (name := f"{PART}-{number}") not in self.held)
        tx = self.queue.begin()
        tx.put_many(payloads)
        tx.prepare(transaction_id, part_of=(APPLICATION, self.next_version))
        self.held[transaction_id] = Held(payloads, is_part=True)
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        self._return("part")

    def commit_jointly(self) -> None:
        """Commit all parts as one, the last one first; of three the first is left out, and let go of."""
        parts = self.parts
        chosen = list(reversed(parts[1:] if len(parts) == PARTS_MAX else parts))
        self.queue.joint_commits.commit(APPLICATION, self.next_version, chosen)
        self.version = self.next_version
        for key in chosen:
            self._in_log(A, self.held[key].puts)
        for key in parts:
            del self.held[key]
        states: dict[Side, State] = {PREPARED: self._in_doubt(), JOINT: self.version}
        if chosen:
            states[LOG] = len(self.history.payloads[A])
        self._happened(states, durable=True)
        self._return("commit_jointly")

    def commit_jointly_again(self) -> None:
        """Commit a version that was committed, by somebody who does not know: nothing happens."""
        assert self.version is not None
        self.queue.joint_commits.commit(APPLICATION, self.version, ["who knows"])
        assert self.queue.joint_commits.latest(APPLICATION) == self.version
        self._return("commit_jointly_again")
