"""One module per peer: how it is found and started. What is measured is the same for all and lives elsewhere."""
