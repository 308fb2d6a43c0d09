"""Arrow for tests: ranges of data files, read without Spark."""
