"""What has to be measured in a process of its own; started by benchmarks."""
