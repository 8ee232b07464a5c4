from .auditing import audit as audit
from .entropy import SeededEntropy as SeededEntropy
from .mechanism_contract import MechanismContract as MechanismContract
from .per_record import check_per_record as check_per_record
from .query_contract import QueryContract as QueryContract
from .replaying import replay as replay
from .selection_contract import SelectionContract as SelectionContract
