"""Programs that run inside a peer's own environment and speak JSON lines. They import only the standard library,
`bench.workloads` and the peer itself."""
