"""Handlers of messages: in threads, in processes of their own, and how they stop. docs/workers.md.

``workers`` starts and stops them, ``engine`` has the threads of one queue, ``processes`` the processes.

Invariants: a message is settled once; a handler's error never ends a worker; stopping gives back messages that were not
begun.

May import: ``typed_queue``, serializers, queue, and the ground.
"""
