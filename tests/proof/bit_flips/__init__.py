"""Every single bit of a small queue flipped, one at a time: nothing wrong is shown, nothing is lost without a word."""
