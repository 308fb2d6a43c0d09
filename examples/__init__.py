"""Programs to run and to read: ``demo`` (``make demo``), ``spark`` (``make pipeline``), ``web``, and their ``data``.

``demo`` and ``spark`` start with ``python -m`` from the root of the repository. ``web`` is an application in a folder
of its own, to be copied: its modules import each other by their plain names.
"""
