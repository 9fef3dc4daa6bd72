"""State-space mixers: S4, Mamba and Mamba-2, and the scans that compute them."""
