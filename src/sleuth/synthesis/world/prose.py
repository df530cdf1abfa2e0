"""An entity's passage: its name as the title, then one sentence a stated fact."""

from sleuth.synthesis.world.census import Kind
from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.permutation import key, mix

_PRONOUNS = {True: ("She", "she", "her"), False: ("He", "he", "him")}
_THING = ("It", "it", "it")


class Prose:
    """Writes the contents of passages."""

    def __init__(self, entities: Entities, seed: int) -> None:
        self._entities = entities
        self._phrasing = key(seed, "phrasing")

    def contents(self, entity: int) -> str:
        """Sentences name the entity and say she, he or it by turns, so that a long passage is found by name too."""
        name = self._entities.name(entity)
        forms = ((name, name, name), self._pronouns(entity))
        draw = mix(self._phrasing + entity)
        sentences = []
        for place, relation in enumerate(self._entities.stated(entity)):
            draw, choice = divmod(draw, len(relation.sentences))
            subject, lower, object_ = forms[place % 2]
            value = self._entities.text(entity, relation)
            sentences.append(relation.sentences[choice].format(S=subject, s=lower, O=object_, V=value))
        return f'"{name}"\n' + " ".join(sentences)

    def _pronouns(self, entity: int) -> tuple[str, str, str]:
        if self._entities.kind(entity) is not Kind.PERSON:
            return _THING
        return _PRONOUNS[self._entities.feminine(entity)]
