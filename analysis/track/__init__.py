"""Tracks: fixed workloads, budgets and rules, run by one command."""
