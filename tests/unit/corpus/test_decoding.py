"""Text files that are binary, or in UTF-16 without a byte order mark."""

import random

import pytest

from sleuth.corpus.decoding import decode_text


@pytest.mark.parametrize(
    "content",
    [
        random.Random(0).randbytes(1000),
        b"\x7fELF\x02\x01\x01" + b"\0" * 100,
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\0\0\0\0",
    ],
)
def test_binary_is_reported(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is binary, not text"):
        decode_text(content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-16", "utf-8-sig", "latin-1"])
def test_text_is_decoded(encoding: str) -> None:
    assert decode_text("Größe und Maß\tdes \x1b[1mTextes\n".encode(encoding)) == "Größe und Maß\tdes \x1b[1mTextes\n"


def test_few_control_characters_are_kept_out_of_the_way() -> None:
    assert decode_text(b"words " * 100 + b"\0\x01") == "words " * 100 + "\x01"
    assert decode_text(b"") == ""
