"""Entry of the engine process."""

import os
import sys

# libgomp's threads spin for milliseconds at every barrier unless told otherwise before it is loaded. When another
# process wants the core that one of them waits on, each barrier then costs a time slice: loading the demo model on a
# busy two-core host took 30 s. A shorter spin costs wake-ups on an idle one. Measured on two cores: with 1,000 it loads
# in 1.1 s beside two busy processes and decodes 32 streams in 160 ms a step on an idle host; with 20,000 in 2.6 s and
# 100 ms.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from stoker.engine.process import main

sys.exit(main())
