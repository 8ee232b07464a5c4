from .handle import Handle as Handle
from .ledger import Ledger as Ledger
