"""One hostile call, watched: what it raised, warned, printed, charged and showed."""

import contextlib
import io
import logging
import pickle
import signal
import traceback
import types
import warnings
from dataclasses import dataclass, field

import dpbo
from dpbo.errors import InputError, PrivacyError
from tests.fuzz import world
from tests.fuzz.canaries import shown, stored

LONGEST = 300  # seconds; BoTorch compiles a loop in C++ when pareto_point is first asked, minutes on a busy machine
LONGEST_MESSAGE = 2000
_OWN = {"assume", "void"}  # kinds of record that a refused call may note
_LIBRARIES = ("NumericalWarning", "GPInputWarning", "OptimizationWarning", "DeprecationWarning")  # as in pyproject.toml

_OTHERS = {"dpbo", "pandas", "starlette", "botorch"}


class Hung(BaseException):
    """It took too long."""


@dataclass
class Outcome:
    """What came of a call; `faults` is empty where all promises were kept."""

    error: BaseException | None = None
    faults: list[str] = field(default_factory=list)


def watched(case, change):
    """Call with `change(good)` in place of the good arguments."""
    world.LIVE.clear()
    call, good = case.build(), case.good()
    wanted = change(good)
    before = [curator.ledger.head() for curator in world.LIVE]
    live, told, logs = list(world.LIVE), io.StringIO(), io.StringIO()
    outcome = Outcome()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), _logged(logs):
        warnings.simplefilter("always")
        with _limited():
            try:
                call(**wanted)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                outcome.error = error
    touched = {name for name, value in wanted.items() if value is not good.get(name)}
    outcome.faults += _untyped(outcome.error, case, touched) + _foreign_warnings(warned) + shown_by(outcome.error)
    outcome.faults += [f"printed {what}" for what in shown(told.getvalue() + logs.getvalue() + " ".join(str(w.message) for w in warned))]
    if isinstance(outcome.error, InputError):  # refused: nothing was charged
        outcome.faults += [fault for curator, head in zip(live, before, strict=True) for fault in _charged(curator, head)]
    outcome.faults += [fault for curator in live for fault in seen_in(curator)]
    return outcome


@contextlib.contextmanager
def _limited():
    def hung(*_):
        raise Hung(f"more than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _logged(stream):
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _untyped(error, case, touched):
    if error is None:
        return []
    if isinstance(error, PrivacyError):
        return _poor(error)
    if isinstance(error, case.raises) or touched & set(case.foreign):
        return []
    place = traceback.extract_tb(error.__traceback__)[-1]
    return [f"{type(error).__name__} at {place.filename.rsplit('/', 3)[-1]}:{place.lineno}: {str(error)[:120]}"]


def _poor(error):
    """What a message of ours lacks."""
    text = str(error)
    faults = [f"a message of {len(text)} letters"] if len(text) > LONGEST_MESSAGE else []
    if isinstance(error, InputError) and not (error.parameter and error.allowed and error.parameter in text and error.allowed in text):
        faults.append(f"names no parameter or range: {text[:100]}")
    return faults


def _foreign_warnings(warned):
    kinds = {f"{w.category.__module__}.{w.category.__name__}: {str(w.message)[:80]}" for w in warned if not _excused(w)}
    return [f"warning {kind}" for kind in sorted(kinds)]


def _excused(warning):
    """A warning of ours, or one about another library's insides or public points."""
    kind = warning.category
    hooks = str(warning.message).startswith("Full backward hook is firing")  # Opacus puts hooks on the user's module
    return kind.__module__.partition(".")[0] in _OTHERS or kind.__name__ in _LIBRARIES or hooks


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


def _charged(curator, head):
    news = curator.ledger.records(after=head.seq)
    return [f"a refused call left {record.kind} {record.name}" for record in news if record.kind not in _OWN]


def seen_in(curator):
    """The canaries that a curator or its ledger shows to whoever looks."""
    rows = " ".join(repr(record) for record in curator.ledger.records())
    public = {name: value for name, value in vars(curator).items() if not isinstance(value, types.FunctionType)}
    looked = repr(curator) + str(curator) + rows + _text(public)
    return [f"the curator shows {what}" for what in shown(looked)]
