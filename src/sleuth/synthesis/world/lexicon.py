"""The hand-picked words of names; every list is disjoint from all others, from the prose and from the questions.

Given names alternate: feminine at even places, masculine at odd ones.
"""

from sleuth.synthesis.world.census import Kind

FIRST: dict[Kind, str] = {
    Kind.PERSON: """
        Mira Tobin Selka Orrin Ysolde Darrow Talia Bram Nerys Corwin Odessa Fenwick Liora Jarek Vesna Aldric
        Petra Gideon Saskia Emeric Zelda Lucan Ingrid Rafe Thessaly Magnus Corinna Silvan Brielle Osric Delphine Kellan
        Amara Leopold Junia Percival Rowena Tristan Xanthe Ulric Freya Hadrian Maren Callum Opal Dorian Bettina Wendel
        """,
    Kind.CITY: """
        Aldmoor Brindle Carrow Dunvar Eskdal Farrow Glimmer Hestor Ivarn Jorven Kelder Lunden Merrow Nordal
        Ostrav Pellam Quarrin Rosmar Selwyn Tarnow Ulver Varden Westrin Yarrow Zellin Ambry Belmar Caldor Drovik Elmsk
        Fennor Gravik Halden Isfar Kirnov Lorrin Mistral Norvik Oxmer Pryde
        """,
    Kind.COUNTRY: """
        Velmaria Tolvia Ashkar Bruneth Cordava Drelland Esteria Faronia Gorvania Hestia Ilmaria Jovania Kestria
        Lurania Morvane Nyrland Orsinia Pelagia Quenland Ruvania Sarvia Tarkesh Undoria Vostria Wyrland Xandria Yskar
        Zorvia Albara Bostria Celdonia Dravia Elvandia Frisland Galdovia Hyrkania Iskaria Karelda Lothria Meridia
        """,
    Kind.WORK: """
        Silent Crimson Gilded Broken Velvet Scarlet Distant Frozen Burning Ivory Amber Forgotten Wandering Hidden
        Lonely Restless Golden Pale Endless Secret Quiet Bitter Painted Sunken Hollow Copper Emerald Fallen Gentle
        Haunted Iron Jagged Luminous Midnight Narrow Obsidian Patient Rusted Stolen Twilight
        """,
    Kind.ORGANISATION: """
        Harrow Kestrel Meridian Aurora Blackwood Cobalt Everard Falcon Granite Helix Juniper Lantern Mercury
        Northgate Orion Paragon Quantum Redstone Sterling Trident Umbra Vanguard Wexford Zephyr Anchor Beacon Cascade
        Dynamo Eclipse Fulcrum Gryphon Horizon Ironwood Jupiter Keystone Longbow Monarch Nimbus Oakhurst Pinnacle
        """,
}

LAST: dict[Kind, str] = {
    Kind.PERSON: """
        Aldane Thornbury Vance Castellan Hartwell Marchetti Okafor Lindqvist Petrov Ashdown Bellweather Corrigan
        Delacroix Ellsworth Fairbanks Galloway Hawthorne Ivanov Jessamy Kowalski Lockhart Montague Nakamura Oyelaran
        Pemberton Quillon Rasmussen Sorensen Tremaine Underhill Valverde Whitlock Yamada Zielinski Abernathy Blackthorn
        Carmody Dunmore Eastwick Fitzroy Greville Holloway Ingleby Jankowski Kensley Lovelace Mirzoyan Novak
        """,
    Kind.CITY: """
        Haven Crossing Bay Falls Heights Ford Point Ridge Grove Wells Springs Landing Quay Vale Moor Glen Cove Hill
        Bridge Port Cliff Meadow Gate Mount Brook Shore Marsh Abbey Green Dale Fork Pass Strand Terrace Lock Dell
        Creek Pines Rapids Summit
        """,
    Kind.COUNTRY: """
        Republic Union Kingdom Federation Isles Empire Commonwealth Principality Duchy Dominion Territory Province
        Realm League Emirate Sultanate Khanate Protectorate Cantons Lowlands Highlands Coast Archipelago Peninsula
        Plateau Marches Steppe Delta Atoll Basin Tundra Savanna Frontier Shogunate Barony Earldom Margravate
        Palatinate Caliphate Tetrarchy
        """,
    Kind.WORK: """
        Harbour Orchard Mirror Lighthouse Garden Winter River Staircase Voyage Compass Letter Mountain Window Clock
        Feather Shadow Serpent Tower Island Melody Carnival Forest Candle Labyrinth Violin Desert Ocean Puzzle Raven
        Sailor Tapestry Umbrella Valley Willow Journey Bell Crown Dancer Ember Fountain
        """,
    Kind.ORGANISATION: """
        Institute Foundry Guild Academy Trust Society Bureau Syndicate Collective Laboratory Observatory Conservatory
        Press Museum Library College Alliance Council Consortium Workshop Theatre Orchestra Archive Hospital Bank
        Brewery Shipyard Railway Exchange Mill Forum Chapel Ministry Company Corporation Club Fellowship Agency
        Studio Cooperative
        """,
}
