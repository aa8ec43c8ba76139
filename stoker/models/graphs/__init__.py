"""One module per family of models: a configuration, and the graph of kernels it describes."""
