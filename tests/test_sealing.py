"""The keyring by itself: what it seals opens in its own place only, and anything else is a typed error."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_server import everything_said

from symfonic_redis import CodecError, ConfigurationError, Keyring, KeyringMismatch, connect
from symfonic_redis.keys import scope_keys
from symfonic_redis.scope import TenantScope
from symfonic_redis.sealing import KEY_LENGTH, PLAIN, SEALED, Seal

KEY, OTHER = b"k" * KEY_LENGTH, b"o" * KEY_LENGTH
RING = Keyring({"2026-11": KEY, "2026-05": OTHER}, current="2026-11")
SEAL = Seal(RING, "acme:c/1")
ids = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=64)


@given(st.binary(max_size=300), ids, st.binary(min_size=32, max_size=32), st.lists(st.text("abc:/-", max_size=9)))
def test_what_was_sealed_opens_and_is_as_long_as_said(data, name, key, place):
    seal = Seal(Keyring({name: key}, current=name), "scope")
    sealed = seal.seal(data, *place)
    assert seal.unseal(sealed, *place) == data
    assert len(sealed) == len(data) + seal.overhead
    assert sealed != seal.seal(data, *place)  # another nonce each time
    with pytest.raises(CodecError):
        seal.unseal(sealed, *place, "more")
    with pytest.raises(CodecError):
        Seal(seal.ring, "other").unseal(sealed, *place)


@given(st.binary(max_size=60), st.data())
def test_no_bit_can_be_changed(data, chosen):
    sealed = SEAL.seal(data, "turn")
    bit = chosen.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = bytearray(sealed)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodecError):
        SEAL.unseal(bytes(changed), "turn")


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=40))
def test_nothing_can_be_cut_off_or_added(data, tail):
    sealed = SEAL.seal(data, "turn")
    for length in range(len(sealed)):
        with pytest.raises(CodecError):
            SEAL.unseal(sealed[:length], "turn")
    with pytest.raises(CodecError):
        SEAL.unseal(sealed + tail, "turn")


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_typed_error(data, sealed):
    data = SEALED * sealed + data
    for seal in (SEAL, PLAIN):
        if seal is PLAIN and data[:1] != SEALED:
            assert seal.unseal(data, "turn") == data
            continue
        with pytest.raises(CodecError):
            seal.unseal(data, "turn")


def test_a_row_of_another_scope_never_opens():
    # Ids that would collide if they were joined as they are.
    scopes = [
        TenantScope.root("org", "a").child("c", "b"),
        TenantScope.root("org", "a:c").child("c", "b"),
        TenantScope.root("org", "a").child("c", "b/c"),
        TenantScope.root("org", "a").child("c", "b").child("d", "c"),
        TenantScope.root("org", "a\0turn").child("c", "b"),
    ]
    seals = [Seal(RING, scope_keys("p", scope).identity) for scope in scopes]
    for seal in seals:
        sealed = seal.seal(b"row", "turn", "working")
        assert [other.unseal(sealed, "turn", "working") for other in seals if other == seal] == [b"row"]
        for other in seals:
            if other != seal:
                with pytest.raises(CodecError):
                    other.unseal(sealed, "turn", "working")


def test_every_key_of_the_ring_opens_and_the_current_one_seals():
    old = Keyring({"2026-05": OTHER}, current="2026-05").seal(b"row", b"here")
    assert RING.unseal(old, b"here") == b"row"
    assert b"2026-11" in RING.seal(b"row", b"here")
    with pytest.raises(KeyringMismatch, match=r"'2026-11'.*Keyring"):
        Keyring({"2026-05": OTHER}, current="2026-05").unseal(RING.seal(b"row", b"here"), b"here")


def test_another_key_under_the_same_id_is_damage():
    with pytest.raises(CodecError, match="'2026-11'") as refused:
        Keyring({"2026-11": OTHER}, current="2026-11").unseal(RING.seal(b"row", b"here"), b"here")
    assert not isinstance(refused.value, KeyringMismatch)


def test_a_plain_row_is_refused_unless_it_is_expected():
    with pytest.raises(KeyringMismatch, match="accept_plain=True"):
        RING.unseal(b"\x01plain", b"here")
    assert Keyring({"a": KEY}, current="a", accept_plain=True).unseal(b"\x01plain", b"here") == b"\x01plain"


def test_without_a_current_key_rows_are_plain_and_sealed_ones_open():
    reading = Keyring({"2026-11": KEY}, current=None, accept_plain=True)
    assert reading.seal(b"row", b"here") == b"row"
    assert reading.token("name", b"here") == "name"
    assert reading.overhead == 0
    assert reading.unseal(RING.seal(b"row", b"here"), b"here") == b"row"


def test_without_a_ring_a_sealed_row_names_its_key_and_what_to_pass():
    with pytest.raises(KeyringMismatch, match=r"'2026-11'.*encryption=Keyring"):
        PLAIN.unseal(SEAL.seal(b"row", "turn"), "turn")


def test_the_format_is_what_it_was():
    # Rows outlive versions: what this one wrote, every later one has to read.
    row = bytes.fromhex("fe07323032362d3131000102030405060708090a0b2fdb27821f3d72b70d3dcfd5101ab52e5cf1da")
    assert SEAL.unseal(row, "turn", "working") == b"row"
    assert SEAL.token("name", "edit") == "eda8718fc773e49091c995cf57a78b9f"


def test_a_token_is_the_same_for_one_text_in_one_place_under_one_key():
    token = SEAL.token("name", "edit")
    assert token == SEAL.token("name", "edit")
    others = [
        SEAL.token("other", "edit"),
        SEAL.token("name", "other"),
        Seal(RING, "another").token("name", "edit"),
        Seal(Keyring({"2026-11": OTHER}, current="2026-11"), SEAL.scope).token("name", "edit"),
    ]
    assert len({token, *others}) == 5
    assert len(token) == 32


@pytest.mark.parametrize(
    ("keys", "current"),
    [
        ({}, "a"),
        ({"a": KEY}, "b"),
        ({"a": KEY}, None),
        ({"a": KEY[:-1]}, "a"),
        ({"a": KEY + b"x"}, "a"),
        ({"a": "k" * KEY_LENGTH}, "a"),
        ({"": KEY}, ""),
        ({"a" * 65: KEY}, "a" * 65),
        ({"a\n": KEY}, "a\n"),
        ({"\u00e4": KEY}, "\u00e4"),
        ({1: KEY}, 1),
        (KEY, "a"),
        (None, None),
    ],
)
def test_what_is_no_keyring_is_refused_and_never_shows_a_key(keys, current):
    with pytest.raises(ConfigurationError) as refused:
        Keyring(keys, current=current)
    assert "kkk" not in everything_said(refused.value)


def test_a_keyring_never_shows_its_keys():
    secret = bytes(range(65, 65 + KEY_LENGTH))
    ring = Keyring({"2026-11": secret}, current="2026-11")
    deployment = connect("redis://localhost", encryption=ring)
    for shown in (repr(ring), str(ring), f"{ring}", repr(Seal(ring, "scope")), repr(deployment)):
        assert secret[:4].decode() not in shown
        assert secret.hex()[:8] not in shown
    assert repr(ring) == "<Keyring 2026-11; current 2026-11>"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigurationError, match=r"symfonic-redis\[encryption\]"):
        Keyring({"a": KEY}, current="a")


@pytest.mark.parametrize("given", [KEY, {"a": KEY}, True])
def test_connect_takes_a_keyring_or_none(given):
    with pytest.raises(ConfigurationError, match="Keyring"):
        connect("redis://localhost", encryption=given)
    assert connect("redis://localhost", encryption=None).encryption is None
