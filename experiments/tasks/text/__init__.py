"""Text: language modelling, pairs, classification, tags, similarity."""
