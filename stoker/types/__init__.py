"""The words of Stoker as small typed messages. Imports nothing else of Stoker."""
