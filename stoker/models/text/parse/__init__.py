"""What a model wrote, taken apart: reasoning, content and tool calls, from one incremental engine for all formats."""
