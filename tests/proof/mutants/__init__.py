"""Planted bugs: mutations of the real code, each of which the suites have to catch. docs/reliability.md."""
