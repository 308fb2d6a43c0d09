"""Bytes and files: the log, the progress of consumer groups, and the outcomes of transactions.

Rooms; each imports only from those below it:

verify        read-only check of a whole queue
recovery/     opens a queue after a crash
outcomes/     outcomes of transactions, and their consequences
compaction/   data files with little that lives become one
groups/       progress of consumer groups
log/          many data files as one log
index/        finds messages without reading them
ownership/    who owns a directory, and which processes live
segment/      one file of frames
filesystem/   the storage port, locks, documents
format/       bytes only

Only ``filesystem/storage.py`` calls the operating system's file functions. Nothing here starts a thread.
"""
