"""Names beside the ends of lines, moved apart where they would overlap, with a thin leader to their point."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes

FONT_SIZE = 8.4  # points
LABEL_GAP = 12 / 72  # inches from the axes to a label
SPACING = 11.0  # points between the baselines of two labels


@dataclass
class LineLabel:
    text: str
    color: str
    x: float  # data coordinates of the line's end
    y: float


def spread(wanted: list[float], spacing: float, low: float, high: float) -> list[float]:
    """Ascending positions nearest to the ascending `wanted`, `spacing` apart, inside [low, high] if they fit.

    Least squares: labels that touch move as one block around the mean of what they wanted.
    """
    blocks: list[list[float]] = []  # [sum of (wanted - offset), count]
    for position in wanted:
        blocks.append([position, 1])
        while len(blocks) > 1:
            (first_sum, first_count), (second_sum, second_count) = blocks[-2:]
            if second_sum / second_count >= first_sum / first_count + spacing * first_count:
                break
            blocks[-2:] = [
                [first_sum + second_sum - spacing * first_count * second_count, first_count + second_count]
            ]
    placed = []
    for total, count in blocks:
        placed += [total / count + spacing * index for index in range(count)]
    # Push inwards from both ends; the order and the spacing hold.
    for index, position in enumerate(placed):
        placed[index] = max(position, low + spacing * index)
    for index, position in enumerate(placed):
        placed[index] = min(position, high - spacing * (len(placed) - 1 - index))
    return placed


def label_lines(axes: Axes, labels: list[LineLabel], side: str = "right") -> None:
    """Call when limits and scales are final. `side`: right (of the axes) or left (inside, at the points)."""
    if not labels:
        return
    points = 72.0 / axes.figure.dpi
    to_points = lambda x, y: axes.transData.transform((x, y)) * points  # noqa: E731
    box = axes.get_window_extent()
    low, high = box.y0 * points + SPACING / 2, box.y1 * points - SPACING / 2
    labels = sorted(labels, key=lambda label: (label.y, label.text))
    ends = [to_points(label.x, label.y) for label in labels]
    heights = spread([end[1] for end in ends], SPACING, low, high)
    if side == "right":
        column = box.x1 * points + 72 * LABEL_GAP
    else:
        column = min(end[0] for end in ends) - 12
    for label, end, height in zip(labels, ends, heights, strict=True):
        direction = 1 if side == "right" else -1
        far = abs(column - end[0]) > 30 or abs(height - end[1]) > 2
        axes.annotate(
            label.text,
            xy=(label.x, label.y),
            xytext=(column - end[0], height - end[1]),
            textcoords="offset points",
            fontsize=FONT_SIZE,
            color=label.color,
            ha="left" if side == "right" else "right",
            va="center_baseline",
            annotation_clip=False,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.4}
            if side == "left"
            else None,
            arrowprops={
                "arrowstyle": "-",
                "color": label.color,
                "linewidth": 0.6,
                "linestyle": (0, (1, 2)) if abs(column - end[0]) > 30 else "-",
                "alpha": 0.7,
                "shrinkA": 1.5,
                "shrinkB": 4,
                "relpos": ((1 - direction) / 2, 0.5),
            }
            if far
            else None,
        )
