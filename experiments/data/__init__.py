"""Text and rows as they lie on disk: sources, tokenizers, token files, random numbers."""
