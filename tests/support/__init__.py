"""Stand-ins for the ports, so that tests decide when a disk fails, when power goes and what time it is."""
