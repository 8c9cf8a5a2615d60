"""When requests are sent: one file each, its name is the option of `--arrival`.

A file exposes `ARRIVAL`, an `Arrival`: a frozen dataclass whose fields are its flags.
"""
