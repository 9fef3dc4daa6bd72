"""Linear attention: GLA, DeltaNet and Gated DeltaNet."""
