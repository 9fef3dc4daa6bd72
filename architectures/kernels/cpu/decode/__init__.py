"""Decoding of one token through a complete block in C++."""
