"""The small Ed25519 routine against RFC 8032, against PyNaCl, and against what must not pass."""

import nacl.exceptions
import nacl.signing
import pytest
from hypothesis import given, settings, strategies as st

from smgate_agent.launch import ed25519

# RFC 8032, section 7.1: public key, message, signature.
VECTORS = {
    "1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    "2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    "SHA(abc)": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
}
KEY = nacl.signing.SigningKey(bytes(range(32)))
PUBLIC = bytes(KEY.verify_key)
MESSAGE = b"directive"
SIGNATURE = KEY.sign(MESSAGE).signature


def agrees(public_key, message, signature):
    """Both verdicts, which must be equal."""
    try:
        nacl.signing.VerifyKey(public_key).verify(message, signature)
    except nacl.exceptions.CryptoError:
        theirs = False
    else:
        theirs = True
    assert ed25519.verify(public_key, message, signature) == theirs
    return theirs


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_the_rfc_verify(name):
    public_key, message, signature = (bytes.fromhex(part) for part in VECTORS[name])
    assert ed25519.verify(public_key, message, signature)
    assert not ed25519.verify(public_key, message + b"x", signature)


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_what_pynacl_signs_verifies(seed, message):
    key = nacl.signing.SigningKey(seed)
    assert agrees(bytes(key.verify_key), message, key.sign(message).signature)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["key", "message", "signature"]), st.integers(0, 511), st.data())
def test_one_flipped_bit_anywhere_is_refused_by_both(part, bit, data):
    parts = {"key": PUBLIC, "message": MESSAGE, "signature": SIGNATURE}
    changed = bytearray(parts[part])
    bit %= len(changed) * 8
    changed[bit // 8] ^= 1 << bit % 8
    parts[part] = bytes(changed)
    assert not agrees(parts["key"], parts["message"], parts["signature"])


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_garbage_of_the_right_length_is_refused_by_both(public_key, signature):
    assert not agrees(public_key, MESSAGE, signature)


def test_a_second_form_of_a_signature_is_refused():
    scalar = int.from_bytes(SIGNATURE[32:], "little") + ed25519.ORDER
    malleated = SIGNATURE[:32] + scalar.to_bytes(32, "little")
    assert not agrees(PUBLIC, MESSAGE, malleated)


@pytest.mark.parametrize("encoded", ["01" + "00" * 31, "ec" + "ff" * 30 + "7f", "00" * 32])
def test_a_key_of_small_order_is_refused(encoded):
    """Such a key would accept the same signature for every message."""
    key = bytes.fromhex(encoded)
    assert not ed25519.verify(key, MESSAGE, key + bytes(32))
    assert not ed25519.verify(PUBLIC, MESSAGE, key + SIGNATURE[32:])


@pytest.mark.parametrize("encoded", ["ee" + "ff" * 30 + "7f", "ff" * 32, "ed" + "ff" * 30 + "7f"])
def test_a_coordinate_beyond_the_field_is_refused(encoded):
    assert not ed25519.verify(bytes.fromhex(encoded), MESSAGE, SIGNATURE)


def test_wrong_lengths_and_text_that_is_no_hexadecimal_are_refused():
    assert not ed25519.verify(PUBLIC[:-1], MESSAGE, SIGNATURE)
    assert not ed25519.verify(PUBLIC, MESSAGE, SIGNATURE[:-1])
    assert not ed25519.verify(PUBLIC, MESSAGE, SIGNATURE + b"\0")
    assert not ed25519.verify_hex("zz", MESSAGE, SIGNATURE.hex())
    assert not ed25519.verify_hex("ü" * 64, MESSAGE, SIGNATURE.hex())
    assert ed25519.verify_hex(PUBLIC.hex(), MESSAGE, SIGNATURE.hex())
