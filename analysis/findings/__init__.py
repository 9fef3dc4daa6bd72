"""Claims of the field, registered before the runs that decide them, and their verdicts."""
