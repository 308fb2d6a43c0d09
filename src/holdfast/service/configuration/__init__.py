"""What operators say of queues: files and variables. docs/configuration.md."""
