"""How a benchmark is measured, beside what, and the table that it goes into."""
