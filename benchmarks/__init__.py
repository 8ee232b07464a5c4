"""One module, one claim: `python -m benchmarks.NAME [--smoke] [--seed N] [--json FILE] [--plot
DIR]`. One thread each.
"""

import atexit
import os
import shutil
import tempfile

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

if "DPBO_STATE" not in os.environ:
    # Thousands of runs over the same public tables, none of which is a person's.
    os.environ["DPBO_STATE"] = tempfile.mkdtemp(prefix="dpbo-state-")
    atexit.register(shutil.rmtree, os.environ["DPBO_STATE"], ignore_errors=True)
