"""What came out of a sweep, to read, to print and to compute with: tables, figures, and a page with both.

outcomes.py     the runs by their settings; means and spreads over seeds
words.py        what axes, settings and figures are called; decimals.py how numbers are written
tables.py       tables as values; formats.py as Markdown, LaTeX and CSV
figures.py      figures: charts.py over the settings of an axis, courses.py over rounds
page.py         the page; files.py writes all of it
"""
