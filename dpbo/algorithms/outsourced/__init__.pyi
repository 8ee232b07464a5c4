from .modeler import Modeler as Modeler
from .published import PublishedRows as PublishedRows
from .published import published_omega as published_omega
from .published import published_transform as published_transform
