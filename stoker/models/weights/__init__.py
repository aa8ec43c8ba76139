"""Checkpoints on disk -> tensors by name. One module per file format; `checkpoint` is what graphs load from."""
