"""Layer 2: token ids in, token ids out. Knows nothing of HTTP, SQL or money."""
