"""`Ledger`, whose room is `dpbo.ledger`, by the name that callers import beside the curator."""

from dpbo.ledger.ledger import Ledger as Ledger
