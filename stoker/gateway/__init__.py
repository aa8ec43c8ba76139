"""HTTP only: routes, keys, limits, streaming. Never imports torch."""
