"""Model output to reasoning, text and tool calls: one incremental engine over a description per format."""
