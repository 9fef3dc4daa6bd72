"""Scores over compute: multipliers, their verdicts, and how well small budgets predict large ones."""
