"""Reading: a queue as a table, and how its data files become Arrow."""
