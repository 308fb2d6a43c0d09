"""Stand-ins for the storage port and for disks: in memory, failing, slow, without locks, or real and small.

``SimulatedStorage`` is the one that most tests take. It knows what a loss of power could take, and records each change.
Imports ``holdfast.persistence.filesystem`` and the other modules of this room only.
"""
