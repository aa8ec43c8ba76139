"""Entry of the engine process."""

import os
import sys

# libgomp's threads spin for milliseconds at every barrier unless told otherwise before it is loaded. When another
# process (the gateway, to begin with) wants the core that one of them waits on, each barrier then costs a time slice:
# loading the demo model on a busy two-core host takes 30 s instead of 3 s. A short spin costs nothing on an idle one.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from stoker.engine.process import main

sys.exit(main())
