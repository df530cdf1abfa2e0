"""The generated encyclopedia of fictional people, places, works and organisations."""
