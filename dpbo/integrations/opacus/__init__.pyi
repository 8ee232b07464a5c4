from .accountant import LedgerAccountant as LedgerAccountant
from .engine import PrivateEngine as PrivateEngine
from .engine import Session as Session
from .planning import DPSGDConfig as DPSGDConfig
from .planning import plan_tuning as plan_tuning
from .tuning import tune as tune
