"""The fault loop: every storage call of every operation fails, once and for ever, in operation and in recovery.

So does every start of a thread, which no call may fail for.

``world`` is the disk and the queues of one case, ``views`` what recovery shows of a disk, ``expected`` what it may be.
``operation`` says what an operation is, ``working`` and ``deciding`` are the operations, ``kinds`` the faults.
``in_operation`` and ``in_recovery`` are the two loops, ``loop`` runs them, ``__main__`` deals them out and prints what
they found. A case counts the storage calls of an operation in a first run, and lets one of them fail in a second.
"""
