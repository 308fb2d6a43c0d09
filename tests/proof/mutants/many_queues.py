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
    Mutation(
        "part-of-one-queue-committed-alone",
        "A commit over several queues is decided though the part of another queue is gone.",
        "queue/queues_joint_commits.py",
        "                    found = tuple((each, self._find_part(each, part_of)) for each in dict.fromkeys(parts))\n",
        "                    found = ()\n"
        "                    for each in dict.fromkeys(parts):\n"
        "                        try:\n"
        "                            found += ((each, self._find_part(each, part_of)),)\n"
        "                        except TransactionNotFoundError:\n"
        "                            pass\n",
        "queues as one",
    ),
    Mutation(
        "first-queue-followed-alone",
        "A commit over several queues ends when the first of them has its part.",
        "queue/queues_joint_commits.py",
        "            for name, queue in self._queues.items():\n",
        "            for name, queue in list(self._queues.items())[:1]:\n",
        "queues as one",
    ),
    Mutation(
        "next-version-takes-the-place-of-one-that-waits",
        "Parts of a commit that a queue has not put into its log are aborted by the next commit.",
        "queue/queues_joint_commits.py",
        'away = self._require_followed(known, queues, "a later one cannot be decided before that")',
        "away: Parts = ()",
        "queues as one",
    ),
    Mutation(
        "decision-followed-before-it-is-durable",
        "A queue puts its part into its log by a decision that a power failure takes back.",
        "persistence/outcomes/shared_joint_file.py",
        "            write_document(self._storage, self._path, fields, LARGE_DOCUMENT_BYTES_MAX)\n"
        "            return document_id\n",
        "            return document_id\n",
        "queues as one",
    ),
    Mutation(
        "parts-of-several-queues-aborted-by-one",
        "A joint commit of one queue aborts parts that the document beside the queues decides.",
        "queue/prepared/joint_resolver.py",
        "if each.part_of is not None and each.part_of.is_shared == is_shared]",
        "if each.part_of is not None and (each.part_of.is_shared or not is_shared)]",
        "queues as one",
    ),
    Mutation(
        "another-document-decides",
        "A document that was made anew at the same path decides the parts of the one before.",
        "persistence/outcomes/shared_joint_file.py",
        "    return file if file.id() == part_of.document_id else None\n",
        "    return file if file.id() is not None else None\n",
        "queues as one",
    ),
    Mutation(
        "parts-of-a-missing-queue-given-up",
        "A queue that is moved away and back has lost what a commit had decided for it.",
        "queue/queues_joint_commits.py",
        "JointCommit(application, version, now, away + found, is_remembered)",
        "JointCommit(application, version, now, found, is_remembered)",
        "blocked queues",
    ),
    Mutation(
        "failed-queue-counts-as-followed",
        "A decision ends though the sync of a part has failed, and a power failure takes the part back.",
        "queue/queues_joint_commits.py",
        "if commit is not None and (waits or error is not None):",
        "if commit is not None and waits:",
        "blocked queues",
    ),
    Mutation(
        "poisoned-queue-counts-as-followed",
        "A decision ends though the name of a part in the log is not durable, and a power failure takes the part back.",
        "queue/queues_joint_commits.py",
        "        self.each(PersistentQueue.prepared, PersistentQueue.flush)\n",
        "        self.each(PersistentQueue.prepared)\n",
        "queues as one",
    ),
    Mutation(
        "flush-of-a-poisoned-queue-returns",
        "A flush says that all is on the disk, though the file of a part may have lost its name.",
        "queue/producer/write_side.py",
        "        self._writer.check_poison()\n",
        "",
        "queues as one",
    ),
    Mutation(
        "unread-part-passes-for-a-damaged-one",
        "An abort over several queues returns though it could not read a part just then, which stays in doubt.",
        "queue/queues_joint_commits.py",
        "                return True  # it cannot be read just now, and its queue looks again\n",
        "                return False\n",
        "queues as one",
    ),
    Mutation(
        "dead-applications-fill-the-document",
        "What dead writes have decided stays in the document for ever.",
        "queue/queues_joint_commits.py",
        "        self._finish_others(application)\n        known",
        "        known",
        "blocked queues",
    ),
)
