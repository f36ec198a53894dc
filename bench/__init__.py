"""The course's speed and learning, measured beside what one would use instead: `make bench`."""

import os

os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported: no loop pays for a progress bar
