from .clipped import ClippedMean as ClippedMean
from .clipped import ClippedScores as ClippedScores
from .clipped import ClippedSum as ClippedSum
from .query import Query as Query
