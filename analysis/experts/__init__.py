"""Routing of the experts of a run: tables and figures."""
