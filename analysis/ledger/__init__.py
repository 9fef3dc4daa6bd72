"""Published numbers beside ours, with computed verdicts."""
