from .curator import Curator as Curator
from .distributed import Ranks as Ranks
from .handle import Handle as Handle
from .ledger import Ledger as Ledger
from .records import Source as Source
