"""The API page shows what a reader calls, not the checks of arguments behind it."""

HIDDEN = ("check_", "refuse_", "describe")


def skip(app, kind, name, thing, skipped, options):
    return True if name.startswith(HIDDEN) else None


def setup(app):
    app.connect("autodoc-skip-member", skip)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
