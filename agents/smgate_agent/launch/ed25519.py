"""Ed25519 verification after RFC 8032, section 5.1.7. It verifies and never signs.

Slow (some milliseconds) and not constant in time; both are fine for public keys and signatures.
"""

from __future__ import annotations

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_MINUS_ONE = pow(2, (P - 1) // 4, P)
KEY_BYTES = 32
SIGNATURE_BYTES = 64

Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z."""

IDENTITY: Point = (0, 1, 1, 0)


def _add(a: Point, b: Point) -> Point:
    left = (a[1] - a[0]) * (b[1] - b[0]) % P
    right = (a[1] + a[0]) * (b[1] + b[0]) % P
    cross = 2 * a[3] * b[3] * D % P
    depth = 2 * a[2] * b[2] % P
    e, f, g, h = right - left, depth - cross, depth + cross, right + left
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def _multiply(scalar: int, point: Point) -> Point:
    total = IDENTITY
    while scalar > 0:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _equal(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def _recover_x(y: int, sign: int) -> int | None:
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    if square == 0:
        return None if sign else 0
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P != 0:
        x = x * SQRT_MINUS_ONE % P
    if (x * x - square) % P != 0:
        return None
    return P - x if x & 1 != sign else x


def _decompress(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    sign = number >> 255
    y = number & ((1 << 255) - 1)
    x = _recover_x(y, sign)
    return None if x is None else (x, y, 1, x * y % P)


_BASE_Y = 4 * pow(5, P - 2, P) % P
_BASE_X = _recover_x(_BASE_Y, 0) or 0
BASE: Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % P)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is by `public_key` over `message`. Any malformed input is False.

    A scalar not below the group order is refused, and so is a key or a commitment of small order:
    such a key would make one signature good for many messages.
    """
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    key = _decompress(public_key)
    commitment = _decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= ORDER:
        return False
    if _equal(_multiply(8, key), IDENTITY) or _equal(_multiply(8, commitment), IDENTITY):
        return False
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % ORDER
    return _equal(_multiply(scalar, BASE), _add(commitment, _multiply(challenge, key)))


def verify_hex(public_key: str, message: bytes, signature: str) -> bool:
    """`verify` over hexadecimal text, as the wire has it."""
    try:
        return verify(bytes.fromhex(public_key), message, bytes.fromhex(signature))
    except ValueError:
        return False
