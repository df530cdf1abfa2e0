"""Nations by the adjective that a sentence calls them with, and the countries that belong to them."""

import re

# adjective: the country's names, the one in use first
NATIONS: dict[str, tuple[str, ...]] = {
    "Afghan": ("Afghanistan",), "Albanian": ("Albania",), "Algerian": ("Algeria",),
    "American": ("United States", "United States of America", "USA", "U.S."), "Angolan": ("Angola",),
    "Argentine": ("Argentina",), "Argentinian": ("Argentina",), "Armenian": ("Armenia",), "Australian": ("Australia",),
    "Austrian": ("Austria",), "Azerbaijani": ("Azerbaijan",), "Bahamian": ("Bahamas",), "Bahraini": ("Bahrain",),
    "Bangladeshi": ("Bangladesh",), "Barbadian": ("Barbados",), "Belarusian": ("Belarus",), "Belgian": ("Belgium",),
    "Bermudian": ("Bermuda",), "Bolivian": ("Bolivia",), "Bosnian": ("Bosnia and Herzegovina", "Bosnia"),
    "Brazilian": ("Brazil",), "British": ("United Kingdom", "UK", "Great Britain", "Britain"),
    "Bulgarian": ("Bulgaria",), "Burmese": ("Myanmar", "Burma"), "Cambodian": ("Cambodia",),
    "Cameroonian": ("Cameroon",), "Canadian": ("Canada",), "Chilean": ("Chile",), "Chinese": ("China",),
    "Colombian": ("Colombia",), "Congolese": ("Congo",), "Croatian": ("Croatia",), "Cuban": ("Cuba",),
    "Cypriot": ("Cyprus",), "Czech": ("Czech Republic",), "Czechoslovak": ("Czechoslovakia",), "Danish": ("Denmark",),
    "Dominican": ("Dominican Republic",), "Dutch": ("Netherlands", "the Netherlands"), "Ecuadorian": ("Ecuador",),
    "Egyptian": ("Egypt",), "English": ("England",), "Eritrean": ("Eritrea",), "Estonian": ("Estonia",),
    "Ethiopian": ("Ethiopia",), "Fijian": ("Fiji",), "Filipino": ("Philippines", "the Philippines"),
    "Finnish": ("Finland",), "French": ("France",), "Georgian": ("Georgia",), "German": ("Germany",),
    "Ghanaian": ("Ghana",), "Greek": ("Greece",), "Guatemalan": ("Guatemala",), "Haitian": ("Haiti",),
    "Honduran": ("Honduras",), "Hungarian": ("Hungary",), "Icelandic": ("Iceland",), "Indian": ("India",),
    "Indonesian": ("Indonesia",), "Iranian": ("Iran",), "Iraqi": ("Iraq",), "Irish": ("Ireland",),
    "Israeli": ("Israel",), "Italian": ("Italy",), "Ivorian": ("Ivory Coast",), "Jamaican": ("Jamaica",),
    "Japanese": ("Japan",), "Jordanian": ("Jordan",), "Kazakhstani": ("Kazakhstan",), "Kenyan": ("Kenya",),
    "Kuwaiti": ("Kuwait",), "Latvian": ("Latvia",), "Lebanese": ("Lebanon",), "Liberian": ("Liberia",),
    "Libyan": ("Libya",), "Lithuanian": ("Lithuania",), "Luxembourgian": ("Luxembourg",), "Malagasy": ("Madagascar",),
    "Malaysian": ("Malaysia",), "Malian": ("Mali",), "Maltese": ("Malta",), "Mexican": ("Mexico",),
    "Moldovan": ("Moldova",), "Mongolian": ("Mongolia",), "Moroccan": ("Morocco",), "Namibian": ("Namibia",),
    "Nepalese": ("Nepal",), "Nepali": ("Nepal",), "New Zealand": ("New Zealand",), "Nicaraguan": ("Nicaragua",),
    "Nigerian": ("Nigeria",), "North Korean": ("North Korea",), "Northern Irish": ("Northern Ireland",),
    "Norwegian": ("Norway",), "Pakistani": ("Pakistan",), "Palestinian": ("Palestine",), "Panamanian": ("Panama",),
    "Paraguayan": ("Paraguay",), "Peruvian": ("Peru",), "Polish": ("Poland",), "Portuguese": ("Portugal",),
    "Prussian": ("Prussia",), "Puerto Rican": ("Puerto Rico",), "Romanian": ("Romania",), "Russian": ("Russia",),
    "Rwandan": ("Rwanda",), "Salvadoran": ("El Salvador",), "Saudi": ("Saudi Arabia",), "Scottish": ("Scotland",),
    "Senegalese": ("Senegal",), "Serbian": ("Serbia",), "Singaporean": ("Singapore",), "Slovak": ("Slovakia",),
    "Slovene": ("Slovenia",), "Slovenian": ("Slovenia",), "Somali": ("Somalia",), "South African": ("South Africa",),
    "South Korean": ("South Korea",), "Soviet": ("Soviet Union",), "Spanish": ("Spain",), "Sri Lankan": ("Sri Lanka",),
    "Sudanese": ("Sudan",), "Swedish": ("Sweden",), "Swiss": ("Switzerland",), "Syrian": ("Syria",),
    "Taiwanese": ("Taiwan",), "Tanzanian": ("Tanzania",), "Thai": ("Thailand",),
    "Trinidadian": ("Trinidad and Tobago",), "Tunisian": ("Tunisia",), "Turkish": ("Turkey",),
    "Ugandan": ("Uganda",), "Ukrainian": ("Ukraine",), "Uruguayan": ("Uruguay",), "Uzbekistani": ("Uzbekistan",),
    "Venezuelan": ("Venezuela",), "Vietnamese": ("Vietnam",), "Welsh": ("Wales",), "West German": ("West Germany",),
    "East German": ("East Germany",), "Yugoslav": ("Yugoslavia",), "Zambian": ("Zambia",), "Zimbabwean": ("Zimbabwe",),
}  # fmt: skip
COUNTRIES = frozenset(name for names in NATIONS.values() for name in names) - {"U.S.", "UK"}
# Nations that may be said of one and the same person.
AKIN: tuple[frozenset[str], ...] = (
    frozenset({"British", "English", "Scottish", "Welsh", "Northern Irish", "Irish"}),
    frozenset({"Soviet", "Russian", "Ukrainian", "Belarusian", "Georgian", "Armenian", "Lithuanian", "Latvian"}
              | {"Estonian", "Azerbaijani", "Kazakhstani", "Moldovan", "Uzbekistani"}),
    frozenset({"German", "West German", "East German", "Prussian", "Austrian"}),
    frozenset({"Czech", "Czechoslovak", "Slovak"}),
    frozenset({"Yugoslav", "Serbian", "Croatian", "Bosnian", "Slovene", "Slovenian"}),
    frozenset({"Indian", "Pakistani", "Bangladeshi"}),
    frozenset({"Chinese", "Taiwanese"}),
    frozenset({"Argentine", "Argentinian"}),
    frozenset({"American", "Puerto Rican"}),
    frozenset({"Nepalese", "Nepali"}),
)  # fmt: skip
ADJECTIVE = rf"(?:{'|'.join(sorted(NATIONS, key=len, reverse=True))})"
ADJECTIVES = re.compile(rf"(?<![\w-]){ADJECTIVE}(?![\w])")
MIXED = re.compile(
    rf"{ADJECTIVE}(?:[-–/]|,? and )[A-Z]|\b(?=[^\WA-Z]*+[A-Z]\w)\w++[-–/]{ADJECTIVE}|{ADJECTIVE}[- ]born"
)


def nation(phrase: str) -> str | None:
    """The one nation that a phrase names; None where it names none or several."""
    found = set(ADJECTIVES.findall(phrase))
    return found.pop() if len(found) == 1 and not MIXED.search(phrase) else None


def differ(one: str, other: str) -> bool:
    """Whether two nations are surely not the same."""
    return one != other and not any(one in each and other in each for each in AKIN)
