"""Fast implementations of the operations of layers, and the selection among them."""
