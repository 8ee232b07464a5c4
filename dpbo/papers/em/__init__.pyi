from .exponential_family import DPEM as DPEM
from .factor_analysis import DPFactorAnalysis as DPFactorAnalysis
from .factor_analysis import embedding as embedding
from .kmeans import DPKMeans as DPKMeans
from .kmeans import DPLloyd as DPLloyd
from .mixture import DPGaussianMixture as DPGaussianMixture
