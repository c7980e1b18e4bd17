"""The report of a sweep: tables, figures and one page; `write.py` writes them all."""
