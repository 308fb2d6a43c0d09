"""Mixed load on a real disk for minutes: memory, descriptors, threads and disk stay flat, and every message counts."""
