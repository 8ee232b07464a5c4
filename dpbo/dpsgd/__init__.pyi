from .accountant import LedgerAccountant as LedgerAccountant
from .engine import PrivateEngine as PrivateEngine
from .engine import Session as Session
from .planning import DPSGDConfig as DPSGDConfig
from .planning import plan_tuning as plan_tuning
from .selection import NoisedScore as NoisedScore
from .selection import private_selection as private_selection
from .tuning import tune as tune
