"""none yet"""

MUTANTS = ()
