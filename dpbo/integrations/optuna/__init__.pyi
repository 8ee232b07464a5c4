from .sampling import NoiseAwareSampler as NoiseAwareSampler
from .sampling import recommended_of as recommended_of
from .trials import BudgetSpent as BudgetSpent
from .trials import StudyEnded as StudyEnded
from .trials import TrialObjective as TrialObjective
