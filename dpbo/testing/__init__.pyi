from .entropy import SeededEntropy as SeededEntropy
from .ledger_contract import LedgerContract as LedgerContract
from .mechanism_contract import MechanismContract as MechanismContract
from .per_record import check_per_record as check_per_record
from .query_contract import QueryContract as QueryContract
from .statistics import assert_law as assert_law
from .statistics import assert_not_law as assert_not_law
