"""Generated text: what is asked for, and the texts that are written."""
