"""Bad input, for every public name: it works, or it raises a typed error that names the parameter, charges nothing and tells nothing.

`names` reads the public names from the stubs; `cases` has one good call of each, and a name without one fails a test; `hostile` replaces
one or two of its arguments; `watched` says what may come of it. Records and labels hold canaries, which must show nowhere.
"""
