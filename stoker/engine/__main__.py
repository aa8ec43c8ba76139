"""Entry of the engine process."""

import os
import sys

# libgomp's threads spin for milliseconds at every barrier unless told otherwise before it is loaded. When another
# process wants the core that one of them waits on, each barrier then costs a time slice: loading the demo model on a
# busy two-core host took 30 s instead of 3 s. No spin at all costs a wake-up at every barrier: on an idle host 1.6x at
# a batch of 32. Some ten microseconds are nearly as good as the best in both.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from stoker.engine.process import main

sys.exit(main())
