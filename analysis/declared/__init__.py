"""Runs that are declared before they are trained: listed, trained where they are missing, and read again."""
