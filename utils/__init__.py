"""The small package behind the notebooks."""

import os

# Threads that wait for one another should sleep, not spin: with any other program busy, spinning makes training many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
