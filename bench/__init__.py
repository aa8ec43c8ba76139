"""Side-by-side benchmarks: the same workloads on Stoker and on its peers, in turns, within one run."""
