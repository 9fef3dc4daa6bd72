"""The harness: configurations, tasks, objectives, training, evaluation and the commands that run them."""
