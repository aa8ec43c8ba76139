"""One place per kernel: the plain torch form of each operation that a native kernel may replace."""
