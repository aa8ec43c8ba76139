"""Layer 3: engines as seen from outside: their processes, their state, where a request goes. Never imports torch."""
