"""One module, one claim: `python -m benchmarks.NAME [--smoke] [--seed N] [--json FILE] [--plot
DIR]`. One thread each.
"""

import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
