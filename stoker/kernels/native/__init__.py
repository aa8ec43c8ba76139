"""Native CPU kernels: C++ behind a plain C interface, built on this machine, loaded with ctypes.

`build` compiles, `library` loads and says why not, the other modules are one kernel each. Everything here is optional:
each kernel has a twin in plain torch in `stoker.kernels`, which decides which of the two runs.
"""
