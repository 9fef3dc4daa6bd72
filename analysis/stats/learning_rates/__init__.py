"""Learning rates of a sweep: the choice, and how sensitive a model is to it."""
