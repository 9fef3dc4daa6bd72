"""Decoding of text: sampling and beam search."""
