"""What operators see: logs and metrics. Imports nothing of Stoker but the types."""
