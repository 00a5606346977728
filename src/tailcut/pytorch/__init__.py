"""Everything that touches PyTorch; nothing else in tailcut imports it."""
