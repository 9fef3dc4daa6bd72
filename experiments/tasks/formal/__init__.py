"""Formal languages and word problems."""
