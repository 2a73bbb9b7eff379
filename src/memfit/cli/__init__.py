"""The command line: one file a command. Torch is imported when a command runs, not before."""
