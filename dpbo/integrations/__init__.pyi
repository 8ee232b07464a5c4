from .opacus import load_opacus as load_opacus
