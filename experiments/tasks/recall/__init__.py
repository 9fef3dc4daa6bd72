"""Associative recall and its variants."""
