"""Style sheets without what no page can match: rules, colours and animations.

What a page can match is read from the built pages and from the words of their scripts,
which may add classes later. In doubt a rule stays.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import tinycss2

TAG = re.compile(r"<([a-z][\w-]*)", re.I)
ATTRIBUTE = re.compile(r'\s([a-z_:][\w:.-]*)(?:="([^"]*)")?', re.I)
OPEN_TAG = re.compile(r"<[a-z](?:[^<>\"']|\"[^\"]*\"|'[^']*')*>", re.I)
SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.S | re.I)
STYLE = re.compile(r"<style\b[^>]*>(.*?)</style>", re.S | re.I)
WORD = re.compile(r"[A-Za-z_][\w-]*")
VARIABLE = re.compile(r"--[\w-]+")
IMPORT = re.compile(r"@import\s+(?:url\()?[\"']([^\"':]+)[\"']\)?\s*;")
NOTICE = re.compile(r"/\*!.*?\*/", re.S)
GROUPS = ("media", "supports", "container", "layer")


@dataclass
class Vocabulary:
    """The names that pages and their scripts hold."""

    tags: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)  # of classes and ids
    words: set[str] = field(default_factory=set)  # of scripts: any of these, later
    variables: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)  # tags that were read

    def read_page(self, html: str) -> None:
        for script in SCRIPT.findall(html):
            self.read_script(script)
        for style in STYLE.findall(html):
            self.variables.update(VARIABLE.findall(style))
        for tag in set(OPEN_TAG.findall(html)) - self.seen:
            self.seen.add(tag)
            self.tags.add(TAG.match(tag)[1].lower())
            for name, value in ATTRIBUTE.findall(tag):
                self.attributes.add(name.lower())
                if name in ("class", "id"):
                    self.names.update(value.split())
                elif "--" in value:
                    self.variables.update(VARIABLE.findall(value))

    def read_script(self, text: str) -> None:
        self.words.update(WORD.findall(text))
        self.variables.update(VARIABLE.findall(text))

    def has_name(self, name: str) -> bool:
        """Whether a class or an id can occur; scripts also build `state-` + word."""
        parts = [name[: i + 1] for i, c in enumerate(name) if c in "-_" and i > 1]
        return (
            name in self.names
            or name in self.words
            or any(part in self.words for part in parts)
        )

    def has_tag(self, name: str) -> bool:
        return name.lower() in self.tags or name.lower() in self.words

    def has_attribute(self, name: str) -> bool:
        name = name.lower()
        camel = re.sub(r"-(\w)", lambda m: m[1].upper(), name.removeprefix("data-"))
        return bool({name, camel} & (self.attributes | self.words))


def split(tokens: list, separator: str = ",") -> list[list]:
    parts = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def can_match(selector: list, vocabulary: Vocabulary) -> bool:
    """Whether some element can match a selector, now or after a script."""
    previous = None
    for token in selector:
        known = True
        if token.type == "ident" and previous == ".":
            known = vocabulary.has_name(token.value)
        elif token.type == "ident" and previous != ":":
            known = vocabulary.has_tag(token.value)
        elif token.type == "hash":
            known = vocabulary.has_name(token.value)
        elif token.type == "[] block":
            name = next(t.value for t in token.content if t.type == "ident")
            known = vocabulary.has_attribute(name)
        elif token.type == "function" and token.lower_name in ("is", "where", "has"):
            options = split(token.arguments)
            known = any(can_match(option, vocabulary) for option in options)
        if not known:
            return False
        previous = token
    return True


def compact(tokens: list) -> list:
    """The same tokens without comments, and with one blank at most in a row."""
    kept = []
    for token in tokens:
        if token.type == "comment":
            continue
        if token.type == "whitespace":
            if not kept or kept[-1].type == "whitespace" or kept[-1] == ",":
                continue
            token.value = " "
        if token == "," and kept and kept[-1].type == "whitespace":
            kept.pop()
        for inside in ("content", "arguments"):
            if isinstance(getattr(token, inside, None), list):
                setattr(token, inside, compact(getattr(token, inside)))
        kept.append(token)
    while kept and kept[-1].type == "whitespace":
        kept.pop()
    return kept


def nested(tokens: list) -> Iterator:
    for token in tokens:
        yield token
        for inside in ("content", "arguments"):
            if isinstance(getattr(token, inside, None), list):
                yield from nested(getattr(token, inside))


@dataclass
class Rule:
    """A rule with its declarations, or a group such as @media with its rules."""

    prelude: str
    declarations: list[tuple[str, str]] = field(default_factory=list)
    rules: list["Rule"] = field(default_factory=list)
    raw: str = ""  # what is kept as it is

    def walk(self) -> Iterator["Rule"]:
        yield self
        for rule in self.rules:
            yield from rule.walk()

    def text(self) -> str:
        body = self.raw or ";".join(
            f"{name}:{value}" for name, value in self.declarations
        )
        return f"{self.prelude}{{{body}{''.join(rule.text() for rule in self.rules)}}}"


def read_rules(text: str, vocabulary: Vocabulary, locate: Callable) -> list[Rule]:
    """The rules of a sheet that can match; ``locate`` writes addresses in it anew."""
    return list(_rules(tinycss2.parse_stylesheet(text, True, True), vocabulary, locate))


def _rules(nodes: list, vocabulary: Vocabulary, locate: Callable) -> Iterator[Rule]:
    for node in nodes:
        if node.type == "error":
            raise ValueError(f"line {node.source_line}: {node.message}")
        if node.type == "qualified-rule":
            selectors = [s for s in split(node.prelude) if can_match(s, vocabulary)]
            if selectors:
                texts = [tinycss2.serialize(compact(s)) for s in selectors]
                yield _body(",".join(texts), node.content, locate)
        elif node.lower_at_keyword in GROUPS and node.content is not None:
            inner = tinycss2.parse_rule_list(node.content, True, True)
            rules = list(_rules(inner, vocabulary, locate))
            if rules:
                yield Rule(_head(node), rules=rules)
        elif node.lower_at_keyword == "font-face":
            yield _body("@font-face", node.content, locate)
        elif node.content is not None:  # @keyframes, @page, @property
            yield Rule(_head(node), raw=tinycss2.serialize(compact(node.content)))
        elif node.lower_at_keyword not in ("charset", "import"):
            raise ValueError(f"@{node.at_keyword} inside a style sheet")


def _head(node) -> str:
    prelude = tinycss2.serialize(compact(node.prelude))
    return f"@{node.at_keyword} {prelude}".strip()


def _body(prelude: str, content: list, locate: Callable) -> Rule:
    for token in nested(content):
        if token.type == "url":
            token.representation = f'url("{locate(token.value)}")'
        elif token.type == "function" and token.lower_name == "url":
            for string in token.arguments:
                if string.type == "string":
                    string.representation = f'"{locate(string.value)}"'
    items = tinycss2.parse_blocks_contents(content, True, True)
    if any(item.type != "declaration" for item in items):  # rules in rules
        return Rule(prelude, raw=tinycss2.serialize(compact(content)))
    rule = Rule(prelude)
    for item in items:
        value = tinycss2.serialize(compact(item.value))
        rule.declarations.append((item.name, value + "!important" * item.important))
    return rule


def drop_unused(rules: list[Rule], variables: set[str]) -> list[Rule]:
    """Without variables that nothing reads, animations and fonts that nothing names."""
    every = list(chain.from_iterable(rule.walk() for rule in rules))
    live, waiting = set(), set(variables)
    values: dict[str, set[str]] = {}
    for rule in every:
        waiting.update(VARIABLE.findall(rule.raw))
        for name, value in rule.declarations:
            found = VARIABLE.findall(value)
            if name.startswith("--"):
                values.setdefault(name, set()).update(found)
            else:
                waiting.update(found)
    while waiting:
        name = waiting.pop()
        live.add(name)
        waiting |= values.get(name, set()) - live
    for rule in every:
        rule.declarations = [
            (name, value)
            for name, value in rule.declarations
            if not name.startswith("--") or name in live
        ]
    used = " ".join(
        value
        for rule in every
        if rule.prelude != "@font-face"
        for _, value in rule.declarations
    ).replace("\\", "")

    def stays(rule: Rule) -> bool:
        rule.rules = [inner for inner in rule.rules if stays(inner)]
        if rule.prelude == "@font-face":
            family = dict(rule.declarations)["font-family"].strip("\"'")
            return family.replace("\\", "") in used
        if rule.prelude.startswith(("@keyframes", "@-webkit-keyframes")):
            return rule.prelude.split()[1] in used
        return bool(rule.declarations or rule.rules or rule.raw)

    return [rule for rule in rules if stays(rule)]


def imports(path: Path) -> Iterator[Path]:
    """A sheet after the sheets that it imports."""
    for address in IMPORT.findall(path.read_text("utf8")):
        yield from imports((path.parent / address).resolve())
    yield path
