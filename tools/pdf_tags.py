"""The tags of a PDF that Chromium printed, made few and made to say what they hold.

Chromium makes an element of structure of every piece of text and of every box: two
hundred thousand for this book, nearly all of the kind `NonStruct`, which tells a screen
reader nothing. Here what they hold goes to the element around them, or becomes a
paragraph where that is no more than a group. Formulas, which come as figures, become
formulas, with their TeX as alternative text (tools/pdf.js).
"""

from collections.abc import Iterator

from pikepdf import Array, Dictionary, Name, NumberTree, Object, Pdf

FORMULA = "formula: "  # what tools/pdf.js puts before the alternative text of one
GROUPS = {"/Document", "/Part", "/Art", "/Sect", "/Div", "/BlockQuote"}
INLINE = {"/Code", "/Em", "/Formula", "/Lbl", "/Link", "/Span", "/Strong"}


class Simplifier:
    """Takes a tree of structure to pieces from its leaves up.

    A piece is an element, or content with the page it is on.
    """

    def __init__(self):
        self.owner = {}  # (page, number on it) of content: the element that holds it
        self.owner_of_note = {}  # the same for annotations

    def pieces(self, element: Object, grouped: bool) -> list[tuple[Object, Object]]:
        """What an element holds; `grouped`: what is left around it is a group."""
        parts = []
        for kid in kids(element):
            if not is_element(kid):
                parts.append((None, True, [(kid, element.get("/Pg"))]))
            elif kid.S == "/NonStruct":
                held = self.pieces(kid, grouped)
                inline = all(is_inline(piece) for piece, _ in held)
                parts.append((kid, inline, held))
            else:
                name_kind(kid)
                self.fill(kid, self.pieces(kid, str(kid.S) in GROUPS))
                parts.append((None, is_inline(kid), [(kid, None)]))
        stays = element.get("/S") != "/NonStruct"
        splits = grouped and (stays or not all(inline for _, inline, _ in parts))
        found = []
        for box, inline, held in parts:
            if splits and inline and held and box is not None:
                box.S = Name.P
                self.fill(box, held)
                held = [(box, None)]
            found += held
        return found

    def fill(self, element: Object, held: list[tuple[Object, Object]]) -> None:
        """Let an element hold these pieces and nothing else."""
        own = next((page for piece, page in held if page is not None), None)
        if own is not None:
            element.Pg = own
        content = []
        for piece, page in held:
            if is_element(piece):
                piece.P = element
            elif isinstance(piece, Dictionary) and piece.get("/Type") == Name.OBJR:
                self.owner_of_note[int(piece.Obj.StructParent)] = element
            else:
                if isinstance(piece, Dictionary):
                    page, piece = piece.get("/Pg", page), piece.MCID
                self.owner[page.objgen, int(piece)] = element
                if page.objgen != own.objgen:
                    piece = Dictionary(Type=Name.MCR, Pg=page, MCID=piece)
            content.append(piece)
        element.K = Array(content)


def kids(element: Object) -> Iterator[Object]:
    held = element.get("/K")
    if isinstance(held, Array):
        yield from held
    elif held is not None:
        yield held


def is_element(piece: Object) -> bool:
    return isinstance(piece, Dictionary) and "/S" in piece


def is_inline(piece: Object) -> bool:
    return not is_element(piece) or str(piece.S) in INLINE


def name_kind(element: Object) -> None:
    """A figure may be a formula, or no more than a frame around one and a caption."""
    alternative = str(element.get("/Alt", ""))
    if alternative.startswith(FORMULA):
        element.S = Name.Formula
        element.Alt = alternative.removeprefix(FORMULA)
    elif element.S == "/Figure" and not alternative:
        element.S = Name.Div


def simplify(pdf: Pdf) -> None:
    """Drop the elements that say nothing; name the formulas."""
    tree = pdf.Root.StructTreeRoot
    simplifier = Simplifier()
    simplifier.fill(tree, simplifier.pieces(tree, grouped=True))
    holders = NumberTree(tree.ParentTree)
    for page in pdf.pages:
        if "/StructParents" in page:
            held = holders[int(page.StructParents)]
            for number in range(len(held)):
                held[number] = simplifier.owner.get((page.objgen, number))
    for number, element in simplifier.owner_of_note.items():
        holders[number] = element
