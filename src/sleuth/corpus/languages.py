"""The language of a text, as an ISO 639-1 code, and the Snowball stemmer of each language."""

import re
from functools import cache
from typing import Any

UNDETERMINED = "und"
# ISO 639-1 codes of the languages with a Snowball stemmer, and its name.
STEMMERS = {
    **{"ar": "arabic", "hy": "armenian", "eu": "basque", "ca": "catalan", "cs": "czech", "da": "danish"},
    **{"nl": "dutch", "en": "english", "eo": "esperanto", "et": "estonian", "fi": "finnish", "fr": "french"},
    **{"de": "german", "el": "greek", "hi": "hindi", "hu": "hungarian", "id": "indonesian", "ga": "irish"},
    **{"it": "italian", "lt": "lithuanian", "ne": "nepali", "no": "norwegian"},
    **{"fa": "persian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian"},
    **{"es": "spanish", "sv": "swedish", "ta": "tamil", "tr": "turkish"},
}
# Others that people write documents in; rarer ones would mostly be found by mistake, in tables and code.
WITHOUT_STEMMER = ("bg", "bn", "gl", "he", "hr", "is", "ja", "ka", "ko", "lv", "mk", "mr", "sk", "sl", "sq")
MORE_WITHOUT_STEMMER = ("te", "th", "uk", "ur", "vi", "zh", "af", "gu", "kn", "ml", "pa", "sw", "tl", "kk", "az", "be")
SAMPLE = 400  # characters from the start, the middle and the end
FEWEST_LETTERS = 40
CONFIDENT = 0.6  # probability
WORD = re.compile(r"[^\W\d_]+")
# Words that are frequent in English and in no other language; most documents need no model.
ENGLISH = frozenset("the and of to that with this are for from which have you not can will".split())  # noqa: SIM905
ENGLISH_SHARE, ENGLISH_WORDS = 0.1, 20


def detect_language(text: str) -> str:
    """Return the ISO 639-1 code of the language of a text; UNDETERMINED if there is too little text to tell."""
    middle = len(text) // 2
    parts = [text] if len(text) <= 3 * SAMPLE else [text[:SAMPLE], text[middle : middle + SAMPLE], text[-SAMPLE:]]
    sample = "\n".join(parts)
    words = WORD.findall(sample.lower())
    if sum(map(len, words)) < FEWEST_LETTERS and all(word.isascii() for word in words):
        return UNDETERMINED
    if len(words) >= ENGLISH_WORDS and sum(word in ENGLISH for word in words) >= ENGLISH_SHARE * len(words):
        return "en"
    code, probability = _identifier().classify(sample)
    return str(code) if probability >= CONFIDENT else UNDETERMINED


@cache
def _identifier() -> Any:
    """Load the model of py3langid, which takes a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([*STEMMERS, *WITHOUT_STEMMER, *MORE_WITHOUT_STEMMER])
    return identifier
