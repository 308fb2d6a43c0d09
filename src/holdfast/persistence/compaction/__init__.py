"""Merges sealed data files with little that lives: what is finished in them gives its space back.

Invariants: no data file is ever changed. What a group needs, a vote holds or retention keeps is in the log at any time.
The name of a merged file says which files it has replaced, and is durable before they go.

May import: groups, log, segment, filesystem, format, and the ground.
"""
