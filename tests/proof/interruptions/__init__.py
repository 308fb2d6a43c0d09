"""KeyboardInterrupt at every bytecode of a queue's calls: memory and disk agree, or the queue is poisoned."""
