"""Bugs in reads and streams of many queues, and in bodies: places of another queue, and rows that are null unsaid."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

MANY_QUEUES = (
    Mutation(
        "offset-of-another-queue",
        "A batch begins in each queue where it begins in the one that is furthest behind.",
        "spark/streaming/many_offset.py",
        "        return before.queues[name]\n",
        "        least = min(place.offset for place in before.queues.values())\n"
        "        return replace(before.queues[name], offset=least)\n",
        "many queues",
    ),
    Mutation(
        "late-queue-begins-with-the-next-put",
        "What was put into a queue before the stream saw it is never read.",
        "spark/streaming/many_source.py",
        "stream.ahead(stream.begin(is_late=True))",
        "stream.ahead(stream.begin())",
        "many queues",
    ),
    Mutation(
        "start-of-a-late-queue-forgotten",
        "The first batch of a queue that has joined comes again with other rows.",
        "spark/streaming/many_source.py",
        "ManyOffset(known, {name: joined[name] for name in joined if name in known})",
        "ManyOffset(known)",
        "many queues",
    ),
    Mutation(
        "deleted-queue-left-out-unsaid",
        "A stream continues without a queue that was deleted, and no one hears of it.",
        "spark/streaming/many_source.py",
        "        if self._options.fail_on_data_loss:\n            raise QueueNotFoundError(",
        "        if not self._options.fail_on_data_loss:\n            raise QueueNotFoundError(",
        "many queues",
    ),
    Mutation(
        "parts-of-another-queue",
        "A task reads ranges of one queue in the files of another one.",
        "spark/reading/queue_reader.py",
        "        queue, offsets = queues[number], known[number]\n",
        "        queue, offsets = queues[0], known[number]\n",
        "many queues",
    ),
    Mutation(
        "null-body-without-a-reason",
        "A payload that cannot be decoded is a row of nulls.",
        "arrow/decoding/decoder.py",
        "                reasons[place] = _reason(error)\n",
        "",
        "many queues",
    ),
    Mutation(
        "null-value-without-a-reason",
        "A value that Arrow refuses is null, and its message looks as if it had none.",
        "arrow/decoding/decoder.py",
        "                bodies[place], reasons[place] = None, _reason(error)\n",
        "                bodies[place] = None\n",
        "many queues",
    ),
)
