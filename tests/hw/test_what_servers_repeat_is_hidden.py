"""No form of a header's value is left in what a server said: whole, a word of it, or what base64 hides."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.serve.secrets import SCHEMES, hidden

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=30).filter(
    lambda word: word.casefold() not in SCHEMES
)


@given(WORDS, WORDS)
def test_user_and_password_of_basic_are_hidden_in_every_form(user: str, password: str) -> None:
    user = user.replace(":", "-")
    word = base64.b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {word}"}
    for said in (f"Basic {word}", word, f"{user}:{password}", password):
        for form in (said, json.dumps(said), quote(said, safe="")):
            left = hidden(f"error: <<{form}>>", headers)
            assert word not in left
            assert password not in left


@given(WORDS)
def test_a_key_is_hidden_wherever_it_stands(key: str) -> None:
    left = hidden(f'{{"version": "1.0+{key}"}}', {"Authorization": f"Bearer {key}"})
    assert key not in left or key in '{"version": "1.0+***"}'


@pytest.mark.parametrize("scheme", ["Basic", "Bearer", "Token"])
def test_schemes_are_no_secrets(scheme: str) -> None:
    assert hidden(f"want {scheme} authorization", {"Authorization": f"{scheme} c2VjcmV0LXNlY3JldA=="}) == f"want {scheme} authorization"
