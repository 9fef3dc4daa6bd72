"""Read a study into one tidy frame: a row for each run."""
