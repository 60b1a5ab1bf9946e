"""Published addresses stay."""

import anchors


def test_no_permanent_address_has_disappeared(site):
    now = {
        f"{path.relative_to(site).as_posix()}#{name}"
        for path in site.rglob("*.html")
        for name in anchors.read(path).ids
    }
    gone = [address for address in anchors.listed() if address not in now]
    assert gone == [], "keep the old anchor: put (old-anchor)= above the new heading"


def test_every_permanent_address_is_listed(site):
    new = sorted(set(anchors.anchors(site)) - set(anchors.listed()))
    assert new == [], "run: python tests/site/anchors.py"
