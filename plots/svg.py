"""A page as an SVG file, or its panels as SVG elements for one HTML document.

Each panel is cropped to itself, so that a phone stacks them.

Matplotlib names elements alike in every file and styles all of `*`; in one document that clashes, so names
that nothing refers to go, the others are made anew, and style rule and font are left to the document. What
every element repeats goes too, and digits that nobody sees: a third of the bytes stays.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from matplotlib.transforms import Bbox
from style import Page

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
MARGIN = 0.05  # inches
# A file says itself what a document says of its panels. Verdana is about as wide as DejaVu Sans.
STYLE = (
    "*{stroke-linejoin:round;stroke-linecap:butt}.dots{stroke-linecap:round}"
    "text{font-family:'DejaVu Sans',Verdana,sans-serif}"
)
REFERENCE = re.compile(r"url\(#([^)]+)\)")
LONG_PATH = 400  # characters; a tenth of a point is enough there
POLYLINES = re.compile(r"(?:M-?[\d.]+ -?[\d.]+(?:L-?[\d.]+ -?[\d.]+)+z?)+")
CORNER = re.compile(r"([ML])(-?[\d.]+) (-?[\d.]+)")
CIRCLE = re.compile(r"M0 ([\d.]+)C")
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?!\d*e)")


@dataclass(frozen=True)
class InlinePanel:
    svg: str
    width: int  # CSS pixels at natural size


def save(page: Page, folder: Path, name: str) -> list[Path]:
    """Writes NAME.svg and NAME.png without dates or versions: the same input gives the same bytes."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    svg.write_text(file_of(page), encoding="utf-8")
    page.figure.savefig(png, dpi=150, metadata={"Software": None})
    return [svg, png]


def file_of(page: Page) -> str:
    """The whole page as the text of an SVG file."""
    stream = io.StringIO()
    page.figure.savefig(stream, format="svg", metadata={"Date": None})
    root = _cleaned(stream.getvalue(), "n")
    root.set("xmlns", SVG.strip("{}"))
    root.set("role", "img")
    style, title = ElementTree.Element("style"), ElementTree.Element("title")
    style.text, title.text = STYLE, page.title
    root[:0] = [title, style]
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def panels_of(page: Page, prefix: str) -> list[InlinePanel]:
    """Each part of the page alone; all as wide as the widest, so that they share a scale."""
    page.figure.draw_without_rendering()
    boxes = [_box(page, part) for part in page.parts]
    anchors = [part[0].get_position().x0 * page.figure.get_figwidth() for part in page.parts]
    left = max(anchor - box.x0 for anchor, box in zip(anchors, boxes, strict=True)) + MARGIN
    right = max(box.x1 - anchor for anchor, box in zip(anchors, boxes, strict=True)) + MARGIN
    found = []
    for index, (part, anchor, box) in enumerate(zip(page.parts, anchors, boxes, strict=True)):
        crop = Bbox([[anchor - left, box.y0 - MARGIN], [anchor + right, box.y1 + MARGIN]])
        root = _cleaned(_drawn(page, part, crop), f"{prefix}-{index}-")
        for name in ("width", "height"):
            root.attrib.pop(name, None)
        root.set("aria-hidden", "true")  # the figure's caption and the tables say the same in words
        found.append(InlinePanel(ElementTree.tostring(root, encoding="unicode"), round(96 * crop.width)))
    return found


def _box(page: Page, part: list) -> Bbox:
    """Inches, labels and ticks included."""
    boxes = [axes.get_tightbbox(page.figure.canvas.get_renderer()) for axes in part]
    return Bbox.union(boxes).transformed(page.figure.dpi_scale_trans.inverted())


def _drawn(page: Page, part: list, crop: Bbox) -> str:
    hidden = [artist for artist in (*page.figure.texts, *page.figure.axes) if artist not in part]
    for artist in hidden:
        artist.set_visible(False)
    stream = io.StringIO()
    page.figure.savefig(stream, format="svg", bbox_inches=crop, facecolor="none", metadata={"Date": None})
    for artist in hidden:
        artist.set_visible(True)
    return stream.getvalue()


def _cleaned(text: str, prefix: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    names = _short_names(root, prefix)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.removeprefix(SVG)
        node.tail = None
        if node.tag != "text":
            node.text = None
        _clean_attributes(node, names)
    dots = _dots(root)
    for node in root.iter():
        _share_style(node)
        _join_dots(node, dots)
    _remove_empty_groups(root)
    root.attrib.pop("version", None)
    return root


def _short_names(root: ElementTree.Element, prefix: str) -> dict[str, str]:
    """New names of the elements that something refers to."""
    found: dict[str, str] = {}
    for node in root.iter():
        for key, value in node.attrib.items():
            referred = [value[1:]] if key == f"{XLINK}href" else REFERENCE.findall(value)
            for name in referred:
                found.setdefault(name, f"{prefix}{len(found)}")
    return found


def _clean_attributes(node: ElementTree.Element, names: dict[str, str]) -> None:
    name = node.attrib.pop("id", None)
    if name in names:
        node.set("id", names[name])
    link = node.attrib.pop(f"{XLINK}href", None)
    if link:
        node.set("href", f"#{names[link[1:]]}")
    if node.get("transform", "").startswith("rotate(-0 "):
        del node.attrib["transform"]
    for key, value in list(node.attrib.items()):
        value = REFERENCE.sub(lambda found: f"url(#{names[found.group(1)]})", value)
        if key in ("d", "x", "y", "transform", "viewBox"):
            text = "{:.1f}" if len(value) > LONG_PATH else "{:.2f}"
            value = LONG_NUMBER.sub(lambda found, text=text: text.format(float(found.group())), value)
        if key == "d":
            value = re.sub(r"\s*([A-Za-z])\s*", r"\1", value.strip())
            if len(value) > LONG_PATH and POLYLINES.fullmatch(value):
                value = _relative(value)
        if key == "style":
            value = re.sub(r"font-family: [^;]*;?", "", value)
        node.set(key, " ".join(value.split()))


def _relative(path: str) -> str:
    """Lines from each corner to the next in tenths of a point: shorter numbers; errors do not add up."""
    written, last = [], (0, 0)
    for command, x, y in CORNER.findall(path):
        here = (round(10 * float(x)), round(10 * float(y)))
        step = here if command == "M" else (here[0] - last[0], here[1] - last[1])
        numbers = " ".join(f"{number / 10:g}" for number in step)
        written.append(
            numbers if command == "L" and written[-1][0] != "M" else f"{command.replace('L', 'l')}{numbers}"
        )
        last = here
    return " ".join(written) + ("z" if path.endswith("z") else "")


def _dots(root: ElementTree.Element) -> dict[str, float]:
    """Diameter of each marker that is a circle, by its name."""
    found = {}
    for node in root.iter("path"):
        circle = CIRCLE.match(node.get("d", "")) if node.get("id") else None
        if circle:
            found[f"#{node.get('id')}"] = 2 * float(circle.group(1))
    return found


def _join_dots(node: ElementTree.Element, dots: dict[str, float]) -> None:
    """Many filled circles of a group become one path of round, empty strokes."""
    style = re.fullmatch(r"fill: (#\w+)(?:; fill-opacity: ([\d.]+))?", node.get("style", ""))
    names = {child.get("href") for child in node}
    if len(node) < 5 or style is None or len(names) != 1 or not names <= set(dots):
        return
    points = [(float(child.get("x")), float(child.get("y"))) for child in node]
    path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    color, opacity = style.groups()
    node.set("style", f"fill: none; stroke: {color}; stroke-opacity: {opacity or 1}")
    for child in list(node):
        node.remove(child)
    joined = {"d": path, "stroke-width": f"{dots[names.pop()]:g}", "class": "dots"}
    ElementTree.SubElement(node, "path", joined)


def _share_style(node: ElementTree.Element) -> None:
    """Markers of one line carry the same style each: once on their group is enough."""
    styles = {child.get("style") for child in node if child.tag == "use"}
    if (
        len(node) > 1
        and len(styles) == 1
        and None not in styles
        and all(child.tag == "use" for child in node)
    ):
        node.set("style", f"{node.get('style', '')}{styles.pop()}")
        for child in node:
            del child.attrib["style"]


def _remove_empty_groups(node: ElementTree.Element) -> None:
    for child in list(node):
        _remove_empty_groups(child)
        if child.tag == "g" and len(child) == 0:
            node.remove(child)
