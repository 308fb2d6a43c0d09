"""Runs a real work queue and its model side by side, verb by verb, chosen at random from a seed.

After each verb both are compared: figures, dead letters, and now and then every message that ``browse`` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from holdfast import Empty, Put, TransactionStateError
from holdfast.queue.inspect.browse import MessageState
from support.models.work_model import NS, ModelTransaction
from support.workloads.work_verbs import WorkError, WorkVerbs

LIVE_MAX = 70
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WorkRun(WorkVerbs):
    """One run: all verbs, time, restarts, and the comparison."""

    def step(self) -> None:
        """Do one verb, and compare."""
        rng = self.rng
        has_space = len(self.model.live) < LIVE_MAX
        takes = [self.get, self.get_many, self.receive, self.receive, self.receive_many, self.peek]
        settles = [self.settle_one, self.settle_one, self.settle_one, self.settle_batch, self.leave_block]
        transacts = [self.begin, self.work_inside, self.work_inside, self.work_inside, self.end_transaction]
        group: list[Callable[[], None]] = rng.choice(
            [
                [self.put, self.put, self.put_many] if has_space else takes,
                takes,
                settles,
                transacts,
                [self.wait, self.wait, self.wait, self.dead_letters, self.dead_letters, self.pause, self.settle_twice],
            ]
        )
        if rng.random() < 0.01:
            group = [self.restart]
        verb = rng.choice(group)
        self.verb_count += 1
        verb()
        self.compare()

    def drain(self) -> None:
        """Let everything end that is under way, and take all there is: nothing stays behind."""
        self.restart()
        self.queue.resume()
        self.model.paused_until_ns = 0
        for _ in range(200):
            self.pass_time(100)
            while self.model.must_come():
                self.get()
                self.compare()
            if not self.model.depth:
                return
            self.get()
            self.compare()
        raise AssertionError(f"{self.model.depth} messages never come")

    # -- Transactions ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction, of which there are three at most."""
        if len(self.transactions) < 3:
            timeout = self.rng.choice([10, 60, 300])
            self.verb_number = number = self.verb_count
            self.note(f"transaction {number} begins, {timeout=}")
            self.transactions[number] = self.queue.begin(timeout=timeout)
            self.model.transactions[number] = ModelTransaction(self.clock.monotonic() + timeout)

    def work_inside(self) -> None:
        """Put, receive or acknowledge in an open transaction."""
        if not self.transactions:
            return
        number = self.rng.choice(list(self.transactions))
        inside, mine = self.transactions[number], self.model.transactions[number]
        kind = self.rng.choice(["put", "receive", "receive", "ack own", "ack own", "ack other"])
        if kind == "put":
            wish = self._ask()
            message = self._message(wish)
            self.note(f"transaction {number} puts {message.payload!r} {wish}")
            inside.put(Put(message.payload, **wish))
            mine.puts.append(message)
        elif kind == "receive":
            try:
                delivery = inside.receive(timeout=0)
            except Empty:
                self._nothing_came()
                return
            self._received(delivery, None, number)
            mine.received.append(delivery.offset)
        else:
            several = (
                self._free() if kind == "ack other" else [each for each in mine.received if each not in mine.acked]
            )
            if several:
                offset = self.rng.choice(several)
                self.note(f"transaction {number} acknowledges {offset}")
                inside.ack(self.in_hand[offset])
                mine.acked.append(offset)
                if kind == "ack other":
                    mine.taken_over.append(offset)
                    self.model.live[offset].holder = number

    def end_transaction(self) -> None:
        """Commit, abort, or leave its block by an exception."""
        if not self.transactions:
            return
        number = self.rng.choice(list(self.transactions))
        inside, mine = self.transactions.pop(number), self.model.transactions[number]
        kind = self.rng.choice(["commit", "commit", "abort", "exception"])
        self.note(f"transaction {number} ends: {kind}")
        if kind == "commit":
            offsets = self.model.commit(number)
            found = inside.commit()
            assert not mine.puts or found == offsets
            self.offsets |= {each.payload: each.offset for each in mine.puts}
            self._down(sorted({*mine.received, *mine.taken_over}))
        elif kind == "abort":
            inside.abort()
            self.model.abort(number)
            self._down(mine.received)
        else:
            error = WorkError("it went wrong in the transaction")
            inside.__exit__(WorkError, error, None)
            self.model.abort(number, None, "exception")
            self._down(mine.received)

    # -- The group ---------------------------------------------------------------------------------------------------

    def dead_letters(self) -> None:
        """Retry or discard dead letters, by offset, as they are, or by their reason."""
        letters = self.queue.dead.list()
        if not letters:
            return
        verb = self.rng.choice(["retry", "retry", "discard"])
        do = self.queue.dead.retry if verb == "retry" else self.queue.dead.discard
        if self.rng.random() < 0.3:
            reason = self.rng.choice(letters).reason
            chosen = [each for each in letters if each.reason == reason]
            count = do(reason=reason)
        else:
            chosen = self.rng.sample(letters, self.rng.randint(1, min(3, len(letters))))
            count = do(chosen) if self.rng.random() < 0.5 else do([each.offset for each in chosen])
        self.note(f"dead.{verb} {[each.offset for each in chosen]}")
        assert count == len(chosen)
        for each in chosen:
            if verb == "retry":
                self.model.retry(each.offset)
            else:
                self.model.discard(each.offset)

    def pause(self) -> None:
        """Pause for a while, or until resumed; or resume."""
        kind = self.rng.choice(["for a while", "for ever", "resume", "resume", "resume"])
        self.note(f"pause: {kind}")
        if kind == "resume":
            self.queue.resume()
            self.model.paused_until_ns = 0
        elif kind == "for ever":
            self.queue.pause(reason="for ever")
            self.model.paused_until_ns = float("inf")
        else:
            until_ns = self.clock.time_ns() + self.rng.choice([2, 15]) * NS
            self.queue.pause(until=EPOCH + timedelta(microseconds=until_ns // 1000))
            self.model.paused_until_ns = until_ns

    # -- Time and restarts -------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Let time pass."""
        self.pass_time(self.rng.choice([0.5, 1, 2, 5, 11, 31, 31]))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and have the queue see what is due."""
        self.note(f"{seconds} s pass")
        self.clock.advance(seconds)
        leased = [each.offset for each in self.model.live.values() if each.state is MessageState.LEASED]
        for number in self.model.pass_time(self.clock.time_ns(), self.clock.monotonic()):
            ended = self.transactions.pop(number)
            if self.rng.random() < 0.5:
                self.note(f"transaction {number} commits too late")
                try:
                    ended.commit()
                except TransactionStateError:
                    continue
                raise AssertionError("a transaction committed whose time was over")
        if self.rng.random() < 0.5:
            self.compare_states()
        self.queue.stats()  # whoever looks at leases ends those that are over
        live = self.model.live
        self._down([offset for offset in leased if live[offset].state is not MessageState.LEASED])

    def restart(self) -> None:
        """Close in order or be killed, and open again."""
        is_clean = self.rng.random() < 0.5
        self.note(f"restart, {is_clean=}")
        if is_clean:
            self.queue.close()
            self.storage = self.storage.crash_keeping_all()
        else:
            killed, self.storage = self.queue, self.storage.crash_keeping_all()
            killed.close()  # on the disk that nobody looks at any more
        self.model.reopen(is_clean=is_clean)
        for several in (self.in_hand, self.settled, self.batches, self.transactions):
            several.clear()
        self.open()

    # -- Comparing ---------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Hold the figures to the model, and now and then every message."""
        stats, model = self.queue.stats(), self.model
        dead = {each.offset: each.reason for each in model.in_state(MessageState.DEAD)}
        if len(dead) != stats.dead or self.rng.random() < 0.1:  # reading them all each time would take half of the run
            dead = {each.offset: each.reason for each in self.queue.dead.list()}
        model.notice(dead, stats.dropped - self.dropped_before)
        self.dropped_before = stats.dropped
        leased = model.in_state(MessageState.LEASED)
        assert stats.depth == model.depth, (stats.depth, model.depth)
        assert stats.in_flight == len(leased) == len(self.in_hand)
        assert stats.dead == len(model.in_state(MessageState.DEAD)) == len(self.queue.dead)
        assert (stats.paused is not None) == model.is_paused
        assert stats.next_offset == model.end
        assert stats.lost == 0
        assert stats.delayed <= stats.depth - stats.in_flight
        if self.rng.random() < 0.1:
            self.compare_states()

    def compare_states(self) -> None:
        """Hold every message that can be browsed to the model."""
        for state in (MessageState.READY, MessageState.LEASED, MessageState.DELAYED, MessageState.DEAD):
            seen = self.queue.browse(state.value, limit=1000)
            expected = self.model.in_state(state)
            assert [each.offset for each in seen] == [each.offset for each in expected], f"not what is {state.value}"
            for each, message in zip(seen, expected, strict=True):
                assert each.payload == message.payload
                assert each.delivery_count == message.delivery_count, each
                assert (each.priority, each.order_key) == (message.priority, message.order_key)
                assert each.until_ns == (message.until_ns if state is MessageState.DELAYED else None), each
        for letter in self.queue.dead.list():
            message = self.model.live[letter.offset]
            assert letter.delivery_count == message.delivery_count
            if message.first_failure_s:
                assert letter.first_failure_ns // NS == message.first_failure_s
