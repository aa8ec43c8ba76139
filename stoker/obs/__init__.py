"""What operators see: logs, heartbeats. Imports nothing of Stoker but the types."""
