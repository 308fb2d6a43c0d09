"""What an application opens: many queues, typed messages, workers, a catalogue."""
