"""The parts that backbones are made of."""
