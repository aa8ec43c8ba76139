"""Layer 1: what a model is. Its text side (`text/`, `source`, `info`) never imports torch."""
