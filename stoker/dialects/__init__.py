"""Pure functions between a wire format (JSON) and the canonical request and events."""
