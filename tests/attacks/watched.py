"""Canaries that the private records hold, and a watch over a call: what it raised, warned, printed, charged and showed."""

import contextlib
import io
import logging
import pickle
import traceback
import types
import warnings

import numpy as np

import dpbo
from dpbo.errors import InputError, PrivacyError

SECRET = 0.7310585786300049
SCALED = [SECRET * factor for factor in np.linspace(0.5, 1.0, 40).tolist()]
LABEL = "CANARY-9f3a"
_SINGLE, _BITS = np.float32(SECRET), int(np.float64(SECRET).view(np.int64))
# The ways in which a number is usually written. Three digits would also be found by chance.
WORDS = {LABEL, repr(SECRET), f"{SECRET:.4f}", f"{SECRET:.5e}", repr(float(_SINGLE)), str(_SINGLE), str(_BITS), f"{_BITS:x}", SECRET.hex()}
WORDS |= {form.format(value) for value in SCALED[1:] for form in ("{!r}", "{:.6g}", "{:.8f}")}
BYTES = {word.encode() for word in WORDS} | {np.array(value, kind).tobytes() for value in SCALED[1:] for kind in ("<f8", ">f8")}
_LIBRARIES = ("NumericalWarning", "GPInputWarning", "OptimizationWarning", "DeprecationWarning")  # as in pyproject.toml


def shown(text):
    """The canaries in a text."""
    return sorted(word for word in WORDS if word in text)


def stored(content):
    """The canaries in a pickle."""
    return sorted(repr(word) for word in BYTES if word in content)


def watched(call, curators=(), allowed=()):
    """(the error of `call()` or None, the promises that were not kept). `allowed`: errors beside dpbo's own that may be raised."""
    curators = list(curators)
    heads = [curator.ledger.head() for curator in curators]
    told, error = io.StringIO(), None
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            warnings.simplefilter("always")
            try:
                call()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:
                error = raised
    finally:
        logging.getLogger().removeHandler(handler)
    faults = [*_untyped(error, allowed), *shown_by(error)]
    faults += [f"warning {w.category.__name__}: {str(w.message)[:80]}" for w in warned if not _excused(w)]
    faults += [f"printed {word}" for word in shown(told.getvalue() + " ".join(str(w.message) for w in warned))]
    for curator, head in zip(curators, heads, strict=True):
        if isinstance(error, InputError) and curator.ledger.head() != head:
            left = [record.kind for record in curator.ledger.records(after=head.seq) if record.kind not in ("assume", "void")]
            faults += [f"a refused call left {left} in the ledger"] if left else []
    return error, faults


def _untyped(error, allowed):
    """What is wrong with the kind of an error, or with its words."""
    if isinstance(error, PrivacyError):
        if len(str(error)) > 2000:
            yield f"a message of {len(str(error))} letters"
        if isinstance(error, InputError):
            text = str(error)
            if not (error.parameter and error.allowed and error.parameter in text and error.allowed in text):
                yield f"names no parameter or range: {text[:100]}"
    elif error is not None and not isinstance(error, allowed):
        place = traceback.extract_tb(error.__traceback__)[-1]
        yield f"{type(error).__name__} at {place.filename.rsplit('/', 3)[-1]}:{place.lineno}: {str(error)[:120]}"


def _excused(warning):
    """A warning of ours, or one about another library's insides or public points."""
    kind = warning.category
    hooks = str(warning.message).startswith("Full backward hook is firing")  # Opacus puts hooks on the user's module
    return kind.__module__.partition(".")[0] in ("dpbo", "pandas", "starlette", "botorch") or kind.__name__ in _LIBRARIES or hooks


def shown_by(error):
    """The canaries that an error, its causes, its attributes or its pickle show."""
    faults, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        spoken = " ".join([_text(error), _text(error.args), _text(vars(error)), *getattr(error, "__notes__", [])])
        faults += [f"{type(error).__name__} says {word}" for word in shown(spoken)]
        if isinstance(error, PrivacyError):
            faults += [f"pickled {type(error).__name__} holds {word}" for word in stored(pickle.dumps(error))]
        error = error.__cause__ or error.__context__
    return faults


def _text(thing):
    try:
        return repr(thing) + str(thing)
    except Exception:
        return ""  # a hostile argument of the caller's own


def frames_of(error):
    """Names and values of the local variables in dpbo's frames, of an error and its causes."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if f"{dpbo.__path__[0]}/" in frame.f_code.co_filename:
                yield from ((f"{frame.f_code.co_name}.{name}", value) for name, value in frame.f_locals.items())
        error = error.__cause__ or error.__context__


def seen_in(curator):
    """The canaries that a curator or its ledger shows."""
    public = {name: value for name, value in vars(curator).items() if not isinstance(value, types.FunctionType)}
    rows = " ".join(repr(record) for record in curator.ledger.records())
    return [f"the curator shows {word}" for word in shown(repr(curator) + str(curator) + rows + _text(public))]
