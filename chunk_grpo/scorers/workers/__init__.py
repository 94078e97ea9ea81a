"""Worker scripts for interpreters without this package, and what they share."""
