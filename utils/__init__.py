"""The small package behind the notebooks."""

import os

# Threads that wait for one another should sleep: spinning makes training many times slower when another program is busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
