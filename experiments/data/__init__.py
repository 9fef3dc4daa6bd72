"""Text and rows on disk: sources, token files, random streams."""
