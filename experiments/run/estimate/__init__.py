"""What a run takes of GPUs, computed before it: memory of each by part, hours, disk, a time limit."""
