from .curator import Curator as Curator
from .handle import Handle as Handle
from .ledger import Ledger as Ledger
from .ranks import Ranks as Ranks
from .records import Source as Source
