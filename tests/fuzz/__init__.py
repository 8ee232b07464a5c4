"""Private records and labels hold canaries, which must show nowhere, whatever a score, a label or a loader does wrong."""
