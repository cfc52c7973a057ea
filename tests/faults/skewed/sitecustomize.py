"""Python runs this as it starts, where its folder is on the path: the wall clock is wrong then, and
no other clock."""

import os
import time

_right = time.time
_by = float(os.environ["SKEWED_BY_SECS"])
time.time = lambda: _right() + _by
