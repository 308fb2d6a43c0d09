"""Who owns a directory, and which processes live: the owner lock with its note, and a locked file for each session.

Invariants: an owner holds the file that ``.owner/lock`` names, or had it when it took it; only the owner gives session
numbers and removes session files; a session that was found dead stays dead. No file here is ever synced: after a loss
of power no process lives.

May import: filesystem, format, and the ground.
"""
