"""The report: intervals, tables, plots and the page. Tables and plain values in, the bytes of files out."""
