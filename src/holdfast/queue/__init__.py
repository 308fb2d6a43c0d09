"""``PersistentQueue`` and its parts: threads, locks, leases, transactions, and other processes.

Rooms; each imports only from those below it:

queues_transaction   a transaction over several queues
persistent_queue     the public class
client/              a handle of the mode "shared": finds the owner, and asks it
owner/               the owner of a shared queue: serves all handles
transactions/        open transactions
prepared/            resolves prepared transactions
inspect/             inspects and administers a queue
engine/              opens, locks, recovers; holds producer and consumer
consumer/            hands out, acknowledges, requeues
dispatch/            which message comes next
producer/            appends, capacity, deduplication
verbs/               verbs of operators on a group, and their log
options/             options of callers
transport/           sockets between the owner and its clients
protocol/            what goes through them
threads/             primitives that know no queue
"""
