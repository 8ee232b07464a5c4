"""The ledger under fire: many processes, kill -9, full disks, cut connections, flipped bytes, old
versions, and PostgreSQL throughout.

At each fault: a typed error, nothing drawn without a durable charge, nothing charged or drawn
twice, and the same curator goes on.
"""
