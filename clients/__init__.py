"""Checks with real agents: each starts Stoker, lets an unmodified client work against it, and looks at both sides."""
