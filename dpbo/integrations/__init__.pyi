from .asking import RemoteCurator as RemoteCurator
from .asking import RemoteRefusal as RemoteRefusal
from .asking import search as search
from .serving import application as application
from .serving import serve as serve
from .tuning import DPSearch as DPSearch
