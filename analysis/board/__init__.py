"""The results board: the scores of all tracks, studies and submissions, as pages without a server."""
