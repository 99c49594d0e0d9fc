"""A curve in a terminal, drawn with the dots of braille characters: each is two dots wide and four high."""

from collections.abc import Sequence

_BLANK = 0x2800
# The bit of each dot, by its row and column in the character, as Unicode numbers them.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def braille_curve(
    points: Sequence[tuple[float, float]], width: int, height: int, top: float | None = None
) -> list[str]:
    """Draw a line through points in rows of characters.

    Args:
        points: (x, y) in ascending order of x; the first is drawn at the left edge and the last at the right.
        width: of a row, in characters.
        height: the number of rows.
        top: the y of the upper edge, above which nothing is drawn; the largest there is if not given.
    """
    cells = [[_BLANK] * width for _ in range(height)]
    previous: tuple[int, int] | None = None
    for column, row in _in_dots(points, 2 * width - 1, 4 * height - 1, top):
        for x, y in _line(previous or (column, row), (column, row)):
            if y >= 0:
                cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        previous = (column, row)
    # A space, for some fonts draw the dots that are not set as little circles.
    return ["".join(chr(cell) if cell > _BLANK else " " for cell in row) for row in cells]


def _in_dots(
    points: Sequence[tuple[float, float]], last_column: int, last_row: int, top: float | None
) -> list[tuple[int, int]]:
    """Return where points lie in dots, from the upper left corner; rows above it are negative, one height at most."""
    if not points:
        return []
    bottom = min(y for _, y in points)
    top = max(bottom, max(y for _, y in points) if top is None else top)
    # What is all of one height is drawn in the middle.
    bottom, top = (bottom, top) if top > bottom else (bottom - 1, bottom + 1)
    first, width = points[0][0], (points[-1][0] - points[0][0]) or 1
    return [
        (round((x - first) / width * last_column), round(max((top - y) / (top - bottom), -1) * last_row))
        for x, y in points
    ]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots between two, both included, without a gap."""
    (x, y), (to_x, to_y) = start, end
    count = max(abs(to_x - x), abs(to_y - y), 1)
    return [(x + round((to_x - x) * part / count), y + round((to_y - y) * part / count)) for part in range(count + 1)]
