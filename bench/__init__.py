"""The course's speed and learning, measured beside what one would use instead: `make bench`."""

import os

import utils  # noqa: F401, it settles how threads wait, which torch reads when it is imported

os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported: no loop pays for a progress bar
