from .experiments import ClientObjective as ClientObjective
