"""The book's first page is ``index.html`` itself, not a page that one is sent to.

Its source lies in a folder (``book/intro``); Jupyter Book would write an
``index.html`` that only forwards, without title, language or description.
"""

import json
import re
from pathlib import Path

HOME = "index.html"
# A module's name in the table of chapters, which is narrow on a phone.
MODULE = re.compile(r'(?<=<span class="pre">)aiayn\.\w+(?=</span></code></p></td>)')


def move_home(app):
    builder = app.builder
    if builder.format != "html":
        return
    target_uri, output = builder.get_target_uri, builder.get_outfilename
    home = app.config.root_doc

    def get_target_uri(docname, typ=None):
        return HOME if docname == home else target_uri(docname, typ)

    def get_outfilename(pagename):
        return str(Path(app.outdir, HOME)) if pagename == home else output(pagename)

    builder.get_target_uri = get_target_uri
    builder.get_outfilename = get_outfilename


def name_home(app, pagename, templatename, context, doctree):
    if pagename == app.config.root_doc:
        context["pageurl"] = app.config.html_baseurl
        app.add_css_file("front.css")
        context["body"] = MODULE.sub(break_name, context["body"])


def break_name(match):
    """A name that goes over to another line after a dot or an underscore only."""
    return re.sub(r"[._]", r"\g<0><wbr>", match[0])


def fix_indexes(app, exception):
    """Search and site map make addresses from document names of their own."""
    if exception or app.builder.format != "html":
        return
    home, out = app.config.root_doc, Path(app.outdir)
    index = out / "searchindex.js"
    head, tail = "Search.setIndex(", ")"
    entries = json.loads(index.read_text("utf8").removeprefix(head).removesuffix(tail))
    entries["docnames"] = [
        HOME.removesuffix(".html") if name == home else name
        for name in entries["docnames"]
    ]
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    index.write_text(f"{head}{text}{tail}", "utf8")
    sitemap = out / "sitemap.xml"
    sitemap.write_text(sitemap.read_text("utf8").replace(f"{home}.html", ""), "utf8")


def setup(app):
    app.connect("builder-inited", move_home)
    app.connect("html-page-context", name_home)
    app.connect("build-finished", fix_indexes, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
