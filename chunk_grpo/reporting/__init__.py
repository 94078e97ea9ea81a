"""The report: intervals, tables, plots and pages. Input: tables and plain values; output: the bytes of files."""
