"""Decoding of one token through a whole block in C++."""
