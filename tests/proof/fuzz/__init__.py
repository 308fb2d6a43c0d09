"""Fuzzing: whatever bytes stand in a file, nothing comes out but what was put, and the errors that are documented."""
