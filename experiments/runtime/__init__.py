"""The process a run lives in: rank, device, memory, signals, locks, errors."""
