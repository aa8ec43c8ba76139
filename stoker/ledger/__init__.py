"""Usage to money: price books, what a row costs, the bridge that explains a saving. Knows no HTTP."""
