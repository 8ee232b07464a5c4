from .planning import TuningPlan as TuningPlan
from .planning import TuningPlans as TuningPlans
from .planning import plan_tuning as plan_tuning
from .training import DPSGD as DPSGD
from .training import Fit as Fit
from .training import Session as Session
from .tuning import TunedModel as TunedModel
from .tuning import tune as tune
