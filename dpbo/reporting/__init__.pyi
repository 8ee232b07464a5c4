from . import plots as plots
from .page import report as report
