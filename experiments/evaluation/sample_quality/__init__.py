"""Quality and speed of sampled texts."""
