from .client import RemoteCurator as RemoteCurator
from .client import search as search
from .server import application as application
from .server import serve as serve
