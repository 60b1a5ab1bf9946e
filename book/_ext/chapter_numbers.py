"""A chapter carries the number of its file, also while some chapters are missing.

``notebooks/13_training`` is chapter 13: in its title, the contents, and the numbers
of its sections, equations and figures. The table of contents can only count.
"""

import re

from docutils import nodes
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

NUMBERED_FILE = re.compile(r"(?:^|/)(\d\d)_[^/]*$")
count_sections = TocTreeCollectorWithStyles.assign_section_numbers


def assign_section_numbers(self, env):
    changed = count_sections(self, env)
    for document, numbers in env.toc_secnumbers.items():
        if not (match := NUMBERED_FILE.search(document)):
            continue
        chapter = int(match[1])
        for anchor, number in numbers.items():
            if number:
                numbers[anchor] = (chapter, *number[1:])
        env.titles[document]["secnumber"] = (chapter,)
        for entry in env.tocs[document].findall(nodes.reference):
            if entry.get("secnumber"):
                entry["secnumber"] = (chapter, *entry["secnumber"][1:])
    return changed


def setup(app):
    # Sphinx offers no event between counting and the figure numbers built on it.
    TocTreeCollectorWithStyles.assign_section_numbers = assign_section_numbers
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
