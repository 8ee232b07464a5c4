"""What an error, its frames, a curator or its ledger show of the canaries."""

import pickle
import traceback
import types

import dpbo
from dpbo.errors import PrivacyError
from tests.fuzz.canaries import shown, stored


def shown_by(error):
    """The canaries that an error, its causes, attributes, pickle or frames show."""
    faults, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        spoken = " ".join([_text(error), _text(error.args), _text(vars(error)), *getattr(error, "__notes__", [])])
        faults += [f"{type(error).__name__} says {what}" for what in shown(spoken)]
        if isinstance(error, PrivacyError):
            faults += [f"pickled {type(error).__name__} holds {what}" for what in stored(pickle.dumps(error))]
        error = error.__cause__ or error.__context__
    return faults


def _text(thing):
    try:
        return repr(thing) + str(thing)
    except Exception:
        return ""  # a hostile argument of the user's own


def frames_of(error):
    """Names and values of the locals in dpbo's frames, of an error and its causes."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if f"{dpbo.__path__[0]}/" in frame.f_code.co_filename:
                yield from ((f"{frame.f_code.co_name}.{name}", value) for name, value in frame.f_locals.items())
        error = error.__cause__ or error.__context__


def seen_in(curator):
    """The canaries that a curator or its ledger shows to whoever looks."""
    rows = " ".join(repr(record) for record in curator.ledger.records())
    public = {name: value for name, value in vars(curator).items() if not isinstance(value, types.FunctionType)}
    looked = repr(curator) + str(curator) + rows + _text(public)
    return [f"the curator shows {what}" for what in shown(looked)]
