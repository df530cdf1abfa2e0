"""The text of an HTML page without menus and footers, by trafilatura."""

from sleuth.corpus.decoding import clean, decoded_page
from sleuth.corpus.markup import read_markup, unwrapped
from sleuth.errors import MissingExtra

# The longest articles have fewer; for these the extractor takes seconds, and its time grows with their number.
MOST_TAGS = 50_000


def page_text(html: str | bytes, url: str | None = None) -> tuple[str, str]:
    """Title ("" where the page has none) and main text of a page, a paragraph a line; total on any input.

    A page in which no main text is found, or that has too many tags, gives all that a reader would see of it.
    """
    source = decoded_page(html) if isinstance(html, bytes) else clean(html)
    markup = read_markup(source)
    text = _main_text(source, url)
    # Of short pages the extractor takes all, and cuts words where a tag stands in them.
    whole = "".join(text.split()) == "".join(markup.text.split())
    return markup.title or markup.heading, text if text and not whole else markup.text


def _main_text(source: str, url: str | None) -> str:
    try:
        import trafilatura
    except ImportError as error:
        raise MissingExtra("trafilatura", "documents") from error
    if source.count("<") > MOST_TAGS:
        return ""
    try:
        text = trafilatura.extract(unwrapped(source), url=url, include_comments=False)
    except Exception:  # pages of the web break extractors in ways nobody can list; what is visible is still there
        return ""
    lines = (" ".join(line.split()) for line in clean(text or "").splitlines())
    return "\n".join(filter(None, lines))
