from .auditing import audit as audit
from .entropy import SeededEntropy as SeededEntropy
from .model_auditing import audit_model as audit_model
from .per_record import check_per_record as check_per_record
from .query_contract import QueryContract as QueryContract
from .query_contract import RowContract as RowContract
from .query_contract import SumContract as SumContract
from .replaying import replay as replay
