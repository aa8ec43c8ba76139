"""What operators see: logs, metrics, traces. Imports nothing of Stoker but the types."""
