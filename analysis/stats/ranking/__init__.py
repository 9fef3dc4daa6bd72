"""Ranks of models within a task, and their correlation between tasks."""
