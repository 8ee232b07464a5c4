"""Values that records and labels hold and that must show nowhere, in the forms in which a message might print them."""

import numpy as np

SECRET = 0.7310585786300049
SCALED = [SECRET * factor for factor in np.linspace(0.5, 1.0, 40)]
LABEL = "CANARY-9f3a"


def renderings(value=SECRET):
    """The ways in which a number is usually written. Three digits would also be found by chance."""
    single = np.float32(value)
    bits = int(np.float64(value).view(np.int64))
    words = {
        repr(value),
        str(value),
        f"{value:.6g}",
        f"{value:.8f}",
        f"{value:.6f}",
        f"{value:.4f}",
        f"{value:.5e}",
        repr(float(single)),
        str(single),
    }
    return words | {str(bits), f"{bits:x}", value.hex()}


WORDS = {LABEL} | renderings() | {word for value in SCALED[1:-1] for word in (repr(value), f"{value:.6g}", f"{value:.8f}")}
BYTES = {word.encode() for word in WORDS} | {
    np.array(value, dtype).tobytes() for value in (SECRET, *SCALED[1:-1]) for dtype in ("<f8", ">f8")
}


def shown(text):
    """The canaries in a text."""
    return sorted(word for word in WORDS if word in text)


def stored(content):
    """The canaries in a pickle."""
    return sorted(map(repr, (word for word in BYTES if word in content)))
