"""Links of pages to what is not a page: files beside the pages, and files of the repository outside docs/.

The pages are Markdown that is also read in a plain view of the repository, where a link is a path from the page's own
folder. Sphinx knows pages only below docs/, so before it reads one:

- a file that stands as a page of the site (CHANGELOG.md, a gallery script) is linked as that page;
- any other file outside docs/ is linked at ``repository_address``, or is a download without one;
- a folder is linked as its index page or at ``repository_address``; else only its name stays.
"""

import re
from pathlib import Path

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "LICENSE": "about/license.md",
    "SECURITY.md": "about/security.md",
}
"""Files of the repository's root, and the pages that show them."""

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*(?:\n[^\]\n]+)?)\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
"""A link to a relative path; the text may go over one line's end, an address has a colon."""


def site_link(link: re.Match[str], folder: Path, docs: Path, address: str) -> str:
    """The link as Sphinx can follow it.

    Args:
        link: a match of `LINK`.
        folder: of the page that has it.
        docs: the folder of the site's pages.
        address: where the repository's files can be read; empty: nowhere.
    """
    text, anchor = link["text"], link["anchor"] or ""
    file = (folder / link["path"]).resolve()
    root = docs.parent
    if file == docs / "gallery":
        return f"[{text}](/auto_gallery/index.rst)"
    if file.parent == docs / "gallery" and file.suffix == ".py":
        return f"[{text}](/auto_gallery/{file.stem}.rst)"
    if file.parent == root and file.name in PAGES:
        return f"[{text}](/{PAGES[file.name]}{anchor})"
    if file.is_dir() and (file / "index.md").is_file() and file.is_relative_to(docs):
        return f"[{text}](/{file.relative_to(docs)}/index.md)"
    if address and file.exists() and not file.is_relative_to(docs):
        return f"[{text}]({address}/{file.relative_to(root)}{anchor})"
    return text if file.is_dir() else link[0]


def on_read(app, docname, source) -> None:  # noqa: ANN001 (Sphinx's hook)
    """Rewrites a Markdown page's links."""
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return
    docs = Path(app.srcdir)
    source[0] = LINK.sub(lambda link: site_link(link, page.parent, docs, app.config.repository_address), source[0])


def setup(app) -> None:  # noqa: ANN001 (Sphinx's hook)
    """Has Sphinx call `on_read`."""
    app.connect("source-read", on_read)
