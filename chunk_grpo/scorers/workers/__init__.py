"""Worker scripts for interpreters without this package, and their shared protocol module."""
