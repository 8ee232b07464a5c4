from .sampling import NoiseAwareSampler as NoiseAwareSampler
from .sampling import recommended_trial as recommended_trial
from .trials import StudyEnded as StudyEnded
from .trials import TrialObjective as TrialObjective
