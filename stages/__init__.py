"""One module is one DVC stage; `python -m stages.NAME` runs it."""
