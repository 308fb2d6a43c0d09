"""What is done to the queues that are crashed: each module adds verbs to the books, ``life`` has all of them."""
