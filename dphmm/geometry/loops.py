"""The inner loops over rasters and polygons, written so that numba can compile them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray


def corners_of_rows(occupied: BoolArray, width: int, out: IntArray) -> int:
    """The cells at the corners of the hull of the occupied ones, as `planar.convex_polygon` orders them; how many.

    Parameters
    ----------
    occupied
        ``(height * width,)``, row by row; at least one.
    width
        The cells in a row.
    out
        ``(2 * height,)``: the corners are written to its beginning.

    Notes
    -----
    Up along the last occupied cells of rows and down along the first ones, without those at which the way does not turn
    to the left. (Andrew's monotone chain, 1979.)
    """
    height = occupied.size // width
    found = turn = 0
    for way in range(2):
        begun = found
        for k in range(height):
            row = k if way == 0 else height - 1 - k
            x = -1
            for column in range(width):
                at = width - 1 - column if way == 0 else column
                if occupied[row * width + at]:
                    x = at
                    break
            if x < 0:
                continue
            while found - begun > 1:
                b, a = out[found - 1], out[found - 2]
                bx, by, ax, ay = b % width, b // width, a % width, a // width
                if (bx - ax) * (row - ay) - (by - ay) * (x - ax) > 0:
                    break
                found -= 1
            out[found] = row * width + x
            found += 1
        if way == 0:
            turn = found
    if found > 2 and out[turn - 1] == out[turn]:  # the highest row has one cell
        for k in range(turn, found - 1):
            out[k] = out[k + 1]
        found -= 1
    if found > 1 and out[found - 1] == out[0]:  # the lowest has
        found -= 1
    least = 0
    for k in range(1, found):
        x, y = out[k] % width, out[least] % width
        if x < y or (x == y and out[k] < out[least]):
            least = k
    for begin, end in ((0, least), (least, found), (0, found)):  # turned round in parts, then as a whole
        while begin < end - 1:
            out[begin], out[end - 1] = out[end - 1], out[begin]
            begin, end = begin + 1, end - 1
    return found


def counts_in_rows(cells: npt.NDArray[Any], rows: IntArray, out: IntArray) -> None:
    """Sums over a body about each cell, of which each row is an interval: differences of sums from the row's start.

    Parameters
    ----------
    cells
        ``(height, width)`` whole numbers.
    rows
        ``(k, 3)``: how far each row of the body is from the origin's, and its first and last column.
    out
        ``(height, width)``: filled with the sums.
    """
    height, width = cells.shape
    left = right = 0
    for k in range(rows.shape[0]):
        left, right = max(left, -rows[k, 1]), max(right, rows[k, 2])
    sums = np.zeros((height, left + width + right + 1), np.int32)
    for y in range(height):
        total = 0
        for x in range(width):
            total += cells[y, x]
            sums[y, left + x + 1] = total
        for x in range(left + width + 1, left + width + right + 1):
            sums[y, x] = total
    line = np.empty(width, np.int32)
    for y in range(height):
        line[:] = 0
        for k in range(rows.shape[0]):
            other = y + rows[k, 0]
            if 0 <= other < height:
                low, high, some = left + rows[k, 1], left + rows[k, 2] + 1, sums[other]
                for x in range(width):
                    line[x] += some[high + x] - some[low + x]
        for x in range(width):
            out[y, x] = line[x]


def occurs(cells: BoolArray, dx: int, dy: int) -> bool:
    """Whether two occupied cells differ by ``(dx, dy)``, ``dy >= 0``."""
    height, width = cells.shape
    for y in range(height - dy):
        for x in range(max(0, -dx), width - max(0, dx)):
            if cells[y, x] and cells[y + dy, x + dx]:
                return True
    return False


def merged_polygon(polygon: IntArray, out: IntArray) -> int:
    """The corners of ``P - P`` of a convex polygon, from its least in lexicographic order; how many.

    The edges of their first half are those of the lower side of ``P``, and of the upper side turned round, by slopes.

    Parameters
    ----------
    polygon
        ``(n, 2)``, three or more: strictly convex, counter-clockwise, beginning with the least one.
    out
        ``(2 n, 2)``: the corners are written to its beginning.
    """
    count, top = len(polygon), 0
    for k in range(count):
        x, y, high = polygon[k][0], polygon[k][1], polygon[top]
        if x > high[0] or (x == high[0] and y > high[1]):
            top = k
    x, y = polygon[0][0] - polygon[top][0], polygon[0][1] - polygon[top][1]
    low, up, found = 0, top, 0
    while low < top or up < count:
        out[found][0], out[found][1] = x, y
        found += 1
        ax = ay = bx = by = 0
        if low < top:
            ax, ay = polygon[low + 1][0] - polygon[low][0], polygon[low + 1][1] - polygon[low][1]
        if up < count:
            after = polygon[(up + 1) % count]
            bx, by = polygon[up][0] - after[0], polygon[up][1] - after[1]
        turn = ax * by - ay * bx
        is_low = up >= count or (low < top and turn >= 0)
        is_up = low >= top or (up < count and turn <= 0)
        if is_low:
            x, y, low = x + ax, y + ay, low + 1
        if is_up:
            x, y, up = x + bx, y + by, up + 1
    for k in range(found):
        out[found + k][0], out[found + k][1] = -out[k][0], -out[k][1]
    return 2 * found


def polygon_sums(corners: FloatArray) -> tuple[float, float, float]:
    """Twice the area of a polygon with corners ``(h, 2)``, 24 times its second moment, and its squared reach.

    Of triangles between the origin and the edges, one after another.
    """
    area = moment = reach = 0.0
    for k in range(len(corners)):
        (ax, ay), (bx, by) = corners[k - 1], corners[k]
        double = ax * by - ay * bx
        own = bx * bx + by * by
        x, y = ax + bx, ay + by
        area += double
        moment += double * ((ax * ax + ay * ay) + own + (x * x + y * y))
        reach = max(reach, own)
    return area, moment, reach
