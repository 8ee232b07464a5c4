"""Draw the pictures of docs/how-to/pictures-and-report.md into docs/pictures: `make pictures`, in
the repository's root.

The search tunes a support vector machine, trained on 300 digits, for 1,497 others. The page of the
report is photographed by Chromium.
"""

import pathlib
import shutil
import subprocess
import tempfile

import matplotlib
import scipy.stats
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import dpbo
from dpbo.acquisition import suggest
from dpbo.reporting import plots

FOLDER = pathlib.Path("docs/pictures")
SPACE = dpbo.Space(
    C=scipy.stats.loguniform(1e-2, 1e3),
    gamma=scipy.stats.loguniform(1e-5, 1.0),
    kernel=["rbf", "sigmoid"],
)


def main() -> None:
    """Search, then draw."""
    matplotlib.use("Agg")
    X, y = load_digits(return_X_y=True)

    def train(x):  # type: ignore[no-untyped-def]
        return make_pipeline(StandardScaler(), SVC(**SPACE.decode(x))).fit(X[:300], y[:300])

    def score(model, records):  # type: ignore[no-untyped-def]
        return model.predict(records[0]) == records[1]

    with tempfile.TemporaryDirectory() as folder:
        curator = dpbo.Curator(
            (X[300:], y[300:]),
            unit="digit",
            adjacency="replace-one",
            budget=dpbo.Budget(epsilon=2.0, delta=1e-6),
            dataset="digits-2026",
            ledger=f"{folder}/tuning.db",
        )
        objective = dpbo.PrivateObjective(
            curator,
            score,
            score_range=(0.0, 1.0),
            evaluations=30,
            fit=train,
            name="svm",
            budget=0.8,
        )
        objective(SPACE.sample(8, seed=0))
        while objective.remaining > 4:
            objective(suggest(SPACE, *objective.history(), seed=objective.remaining))
        figures = {
            "convergence": plots.plot_convergence(objective, space=SPACE).figure,
            "slices": plots.plot_slices(objective, space=SPACE),
            "parallel_coordinates": plots.plot_parallel_coordinates(objective, space=SPACE).figure,
            "budget": plots.plot_budget(curator).figure,
            "noise": plots.plot_noise(1500).figure,
        }
        for name, figure in figures.items():
            figure.savefig(FOLDER / f"{name}.png", dpi=100)
        page = pathlib.Path(folder, "report.html")
        page.write_text(dpbo.report(objective, space=SPACE))
        browser = shutil.which("chromium")
        if browser is not None:
            options = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--window-size=960,2010",
            ]
            subprocess.run(
                [
                    browser,
                    *options,
                    f"--screenshot={FOLDER.absolute()}/report.png",
                    f"file://{page}",
                ],
                check=True,
            )


if __name__ == "__main__":
    main()
