from .expected_improvement import pareto_front as pareto_front
from .expected_improvement import posterior_mean as posterior_mean
from .expected_improvement import suggest as suggest
from .expected_improvement import suggest_pareto as suggest_pareto
from .prior_guidance import prior_guided as prior_guided
from .trust_region import suggest_in_trust_region as suggest_in_trust_region
from .ucb import GPUCB as GPUCB
from .ucb import SrinivasFinite as SrinivasFinite
