"""The layers of backbones."""
