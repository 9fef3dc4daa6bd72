"""Text and rows as they lie on disk: sources, token files, random numbers."""
