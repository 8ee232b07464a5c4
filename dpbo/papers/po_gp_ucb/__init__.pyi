from . import bounds as bounds
from . import http as http
from .curator_side import Outcomes as Outcomes
from .curator_side import read_release as read_release
from .curator_side import release_rows as release_rows
from .modeler import Modeler as Modeler
from .row_noise import row_noises as row_noises
from .rows import RowTable as RowTable
