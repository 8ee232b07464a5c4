from .candidates import CandidateScores as CandidateScores
from .clipped import ClippedMean as ClippedMean
from .clipped import ClippedScores as ClippedScores
from .clipped import ClippedSum as ClippedSum
from .gradient import ClippedGradient as ClippedGradient
from .quantile import QuantileUtilities as QuantileUtilities
from .query import Query as Query
from .sampled import PoissonSampled as PoissonSampled
