"""diffprivlib's KMeans on a file of points, printed as JSON centres; for an environment of its own:
it does not import beside this one's scikit-learn.

    PEER_PYTHON -m benchmarks.papers.dpem_peer POINTS.npy EPSILON CLUSTERS REPETITIONS
"""

import json
import sys
import warnings


def main() -> None:
    import numpy as np
    from diffprivlib.models import KMeans

    warnings.simplefilter("ignore")
    file = sys.argv[1]
    epsilon = float(sys.argv[2])
    clusters = int(sys.argv[3])
    repetitions = int(sys.argv[4])
    X = np.load(file)
    found = [
        KMeans(clusters, epsilon=epsilon, bounds=(-1.0, 1.0)).fit(X).cluster_centers_.tolist()
        for _ in range(repetitions)
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
