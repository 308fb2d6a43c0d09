"""What is measured: the same work by Holdfast, and by what it is compared with."""
