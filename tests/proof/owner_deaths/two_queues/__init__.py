"""Deaths of owners and clients of two shared queues, in transactions and joint commits over both."""
