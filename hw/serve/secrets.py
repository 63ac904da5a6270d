"""A server's words without the secrets that it was sent: no value of a header leaves the process, whatever the server does with it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 4  # shorter words are no secrets, and hiding them would garble what is said


def secrets_of(headers: Mapping[str, str]) -> list[str]:
    """Every form in which a server may repeat a value: whole, each of its words (`Basic` and what follows it), what base64 hides, and user
    and password of that; as they are, in JSON and in a URL. The longest first, so that no part of one is left.
    """
    found: set[str] = set()
    for value in headers.values():
        for word in {value, *value.split()}:
            found |= {word, *_decoded(word)}
    found |= {form for each in tuple(found) for form in (json.dumps(each)[1:-1], quote(each, safe=""), quote(each))}
    return sorted((each for each in found if len(each) >= SHORTEST and each.casefold() not in SCHEMES), key=len, reverse=True)


SCHEMES = ("bearer", "basic", "digest", "token", "negotiate", "apikey", "api-key")


def hidden(text: str, headers: Mapping[str, str]) -> str:
    """The text without any of them."""
    for secret in secrets_of(headers):
        text = text.replace(secret, HIDDEN)
    return text


def _decoded(word: str) -> set[str]:
    """`user:password` of a base64 word, and either of them."""
    try:
        text = base64.b64decode(word, validate=True).decode()
    except (binascii.Error, ValueError):
        return set()
    return {text, *text.split(":", 1)} if text.isprintable() else set()
