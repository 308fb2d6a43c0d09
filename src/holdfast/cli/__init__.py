"""The command ``holdfast``: ``main`` lists the commands, ``commands/`` holds them, the other modules are shared.

Invariants: exit codes are those of docs/cli.md; a library that a command does not need is not imported, and only
``display`` knows whether rich is installed.

May import: everything below; a queue is changed through public methods only.
"""
