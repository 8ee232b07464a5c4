from .ledger import Ledger as Ledger
