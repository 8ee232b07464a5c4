"""Canaries that the private records hold, and a watch over a call: what it raised, warned, printed,
charged and showed.
"""

import contextlib
import io
import logging
import pickle
import traceback
import types
import warnings

import numpy as np

from dpbo.errors import InputError, PrivacyError

SECRET = 0.7310585786300049
LABEL = "CANARY-9f3a"
SCALED = [SECRET * factor for factor in np.linspace(0.5, 1.0, 40).tolist()]
# The ways in which a number is usually written. Three digits would also be found by chance.
FORMS = ("{0!r}", "{0:.6g}", "{0:.8f}", "{0:.5e}", "{1}", "{2}", "{2:x}")
WORDS = {LABEL} | {
    form.format(v, np.float32(v), int(np.float64(v).view(np.int64)))
    for v in SCALED[1:]
    for form in FORMS
}
BYTES = {word.encode() for word in WORDS} | {
    np.array(value, kind).tobytes() for value in SCALED[1:] for kind in ("<f8", ">f8")
}


def shown(content):
    """The canaries in a text or a pickle."""
    return sorted(
        str(word) for word in (BYTES if isinstance(content, bytes) else WORDS) if word in content
    )


def watched(call, curators=(), allowed=()):
    """(the error of `call()` or None, the promises that were not kept). `allowed`: errors beside
    dpbo's own that may be raised.
    """
    before = [(curator.ledger, curator.ledger.head().seq) for curator in curators]
    told = io.StringIO()
    error = None
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
    ):
        warnings.simplefilter("always")
        try:
            call()
        except Exception as raised:
            error = raised
        finally:
            logging.getLogger().removeHandler(handler)
    faults = [
        f"printed {word}"
        for word in shown(" ".join([told.getvalue(), *(str(w.message) for w in warned)]))
    ] + shown_by(error)
    if isinstance(error, InputError):
        text = str(error)
        left = {r.kind for ledger, seq in before for r in ledger.records(after=seq)} - {
            "assume",
            "void",
        }
        named = (
            error.parameter and error.allowed and error.parameter in text and error.allowed in text
        )
        if not named or len(text) >= 2000:
            faults.append(f"names no parameter, no range or too much: {text[:100]}")
        if left:
            faults.append(f"a refused call left {sorted(left)} in the ledger")
    elif error is not None and not isinstance(error, (PrivacyError, *allowed)):
        place = traceback.extract_tb(error.__traceback__)[-1]
        faults.append(
            f"{type(error).__name__} at {place.filename[-40:]}:{place.lineno}: {str(error)[:120]}"
        )
    return error, faults


def shown_by(error):
    """The canaries that an error, its causes, its attributes or its pickle show."""
    faults = []
    while error is not None:
        words = shown(
            " ".join(
                [*map(_text, (error, error.args, vars(error))), *getattr(error, "__notes__", [])]
            )
        )
        words += shown(pickle.dumps(error)) if isinstance(error, PrivacyError) else []
        faults += [f"{type(error).__name__} says {word}" for word in words]
        error = error.__cause__ or error.__context__
    return faults


def _text(thing):
    try:
        return repr(thing) + str(thing)
    except Exception:
        # A hostile argument of the caller's own.
        return ""


def seen_in(curator):
    """The canaries that a curator or its ledger shows."""
    public = {
        name: value
        for name, value in vars(curator).items()
        if not isinstance(value, types.FunctionType)
    }
    return [
        f"the curator shows {word}"
        for word in shown("".join(map(_text, (curator, [*curator.ledger.records()], public))))
    ]
