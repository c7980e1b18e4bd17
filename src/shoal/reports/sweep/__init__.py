"""The report of a sweep: tables, figures and one page; `report.py` writes them all."""
