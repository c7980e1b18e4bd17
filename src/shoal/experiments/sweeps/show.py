def show(out, **k):
    return out / "report.html"
