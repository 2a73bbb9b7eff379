"""One file (or folder) a strategy, each with a `STRATEGY`; `apply` finds them. None imports another."""
